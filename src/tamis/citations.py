"""The works that tamis implements: key → BibTeX. Every bound and method names its key in its docstring."""

from __future__ import annotations

import re
from unicodedata import normalize

CITATIONS: dict[str, str] = {
    "gonon2024thesis": """@phdthesis{gonon2024thesis,
  author = {Antoine Gonon},
  title  = {Harnessing symmetries for modern deep learning challenges: a path-lifting perspective},
  school = {\\'Ecole normale sup\\'erieure de Lyon},
  year   = {2024}
}""",
    "lybrand2021gpfq": """@article{lybrand2021gpfq,
  author  = {Eric Lybrand and Rayan Saab},
  title   = {A Greedy Algorithm for Quantizing Neural Networks},
  journal = {Journal of Machine Learning Research},
  volume  = {22},
  number  = {156},
  pages   = {1--38},
  year    = {2021}
}""",
    "frantar2023optq": """@inproceedings{frantar2023optq,
  author    = {Elias Frantar and Saleh Ashkboos and Torsten Hoefler and Dan Alistarh},
  title     = {{OPTQ}: Accurate Quantization for Generative Pre-trained Transformers},
  booktitle = {International Conference on Learning Representations},
  year      = {2023}
}""",
    "hassibi1993obs": """@inproceedings{hassibi1993obs,
  author    = {Babak Hassibi and David G. Stork},
  title     = {Second Order Derivatives for Network Pruning: Optimal Brain Surgeon},
  booktitle = {Advances in Neural Information Processing Systems 5},
  year      = {1993}
}""",
    "yang2021l1inf": """@misc{yang2021l1inf,
  author = {Zhouwang Yang},
  title  = {Sparse Deep Neural Networks Through {$L_{1,\\infty}$}-Weight Normalization},
  note   = {University of Science and Technology of China},
  year   = {2021}
}""",
    "colombo2021architecture": """@misc{colombo2021architecture,
  author = {Nicolo Colombo and Yang Gao},
  title  = {Differentiable Architecture Pruning for Transfer Learning},
  note   = {Royal Holloway, University of London},
  year   = {2021}
}""",
    "chee2021xnor": """@misc{chee2021xnor,
  author = {Andrew Chee and S\\'ebastien Loustau},
  title  = {Sparsity Regret bounds for {XNOR}-nets++},
  note   = {hal-03262679},
  year   = {2021}
}""",
    "rastegari2016xnor": """@inproceedings{rastegari2016xnor,
  author    = {Mohammad Rastegari and Vicente Ordonez and Joseph Redmon and Ali Farhadi},
  title     = {{XNOR}-Net: {ImageNet} Classification Using Binary Convolutional Neural Networks},
  booktitle = {European Conference on Computer Vision},
  pages     = {525--542},
  year      = {2016}
}""",
    "bulat2019xnor": """@inproceedings{bulat2019xnor,
  author    = {Adrian Bulat and Georgios Tzimiropoulos},
  title     = {{XNOR}-Net++: Improved Binary Neural Networks},
  booktitle = {British Machine Vision Conference},
  year      = {2019}
}""",
    "liu2018bireal": """@inproceedings{liu2018bireal,
  author    = {Zechun Liu and Baoyuan Wu and Wenhan Luo and Xin Yang and Wei Liu and Kwang-Ting Cheng},
  title     = {Bi-Real Net: Enhancing the Performance of 1-bit {CNN}s With Improved Representational Capability and
               Advanced Training Algorithm},
  booktitle = {European Conference on Computer Vision},
  year      = {2018}
}""",
    "liu2020reactnet": """@inproceedings{liu2020reactnet,
  author    = {Zechun Liu and Zhiqiang Shen and Marios Savvides and Kwang-Ting Cheng},
  title     = {{ReActNet}: Towards Precise Binary Neural Network with Generalized Activation Functions},
  booktitle = {European Conference on Computer Vision},
  year      = {2020}
}""",
    "clopper1934confidence": """@article{clopper1934confidence,
  author  = {C. J. Clopper and E. S. Pearson},
  title   = {The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial},
  journal = {Biometrika},
  volume  = {26},
  number  = {4},
  pages   = {404--413},
  year    = {1934}
}""",
    "tango1998paired": """@article{tango1998paired,
  author  = {Toshiro Tango},
  title   = {Equivalence Test and Confidence Interval for the Difference in Proportions for the Paired-Sample Design},
  journal = {Statistics in Medicine},
  volume  = {17},
  number  = {8},
  pages   = {891--908},
  year    = {1998}
}""",
    "berger1994pvalues": """@article{berger1994pvalues,
  author  = {Roger L. Berger and Dennis D. Boos},
  title   = {{P} Values Maximized Over a Confidence Set for the Nuisance Parameter},
  journal = {Journal of the American Statistical Association},
  volume  = {89},
  number  = {427},
  pages   = {1012--1016},
  year    = {1994}
}""",
    "buehler1957confidence": """@article{buehler1957confidence,
  author  = {Robert J. Buehler},
  title   = {Confidence Intervals for the Product of Two Binomial Parameters},
  journal = {Journal of the American Statistical Association},
  volume  = {52},
  number  = {280},
  pages   = {482--493},
  year    = {1957}
}""",
    "wilks1941tolerance": """@article{wilks1941tolerance,
  author  = {S. S. Wilks},
  title   = {Determination of Sample Sizes for Setting Tolerance Limits},
  journal = {The Annals of Mathematical Statistics},
  volume  = {12},
  number  = {1},
  pages   = {91--96},
  year    = {1941}
}""",
    "waudbysmith2024betting": """@article{waudbysmith2024betting,
  author  = {Ian Waudby-Smith and Aaditya Ramdas},
  title   = {Estimating means of bounded random variables by betting},
  journal = {Journal of the Royal Statistical Society Series B: Statistical Methodology},
  volume  = {86},
  number  = {1},
  pages   = {1--27},
  year    = {2024}
}""",
    "langford2005tutorial": """@article{langford2005tutorial,
  author  = {John Langford},
  title   = {Tutorial on Practical Prediction Theory for Classification},
  journal = {Journal of Machine Learning Research},
  volume  = {6},
  pages   = {273--306},
  year    = {2005}
}""",
    "maurer2004pacbayes": """@misc{maurer2004pacbayes,
  author = {Andreas Maurer},
  title  = {A Note on the {PAC} {Bayesian} Theorem},
  note   = {arXiv:cs/0411099},
  year   = {2004}
}""",
    "lotfi2022pacbayes": """@inproceedings{lotfi2022pacbayes,
  author    = {Sanae Lotfi and Marc Finzi and Sanyam Kapoor and Andres Potapczynski and Micah Goldblum
               and Andrew Gordon Wilson},
  title     = {{PAC}-{B}ayes Compression Bounds So Tight That They Can Explain Generalization},
  booktitle = {Advances in Neural Information Processing Systems 35},
  year      = {2022}
}""",
    "kakade2008complexity": """@inproceedings{kakade2008complexity,
  author    = {Sham M. Kakade and Karthik Sridharan and Ambuj Tewari},
  title     = {On the Complexity of Linear Prediction: Risk Bounds, Margin Bounds, and Regularization},
  booktitle = {Advances in Neural Information Processing Systems 21},
  year      = {2008}
}""",
    "e2022barron": """@article{e2022barron,
  author  = {Weinan E and Chao Ma and Lei Wu},
  title   = {The {B}arron Space and the Flow-Induced Function Spaces for Neural Network Models},
  journal = {Constructive Approximation},
  volume  = {55},
  pages   = {369--406},
  year    = {2022}
}""",
    "neyshabur2015norm": """@inproceedings{neyshabur2015norm,
  author    = {Behnam Neyshabur and Ryota Tomioka and Nathan Srebro},
  title     = {Norm-Based Capacity Control in Neural Networks},
  booktitle = {Conference on Learning Theory},
  year      = {2015}
}""",
    "golowich2018size": """@inproceedings{golowich2018size,
  author    = {Noah Golowich and Alexander Rakhlin and Ohad Shamir},
  title     = {Size-Independent Sample Complexity of Neural Networks},
  booktitle = {Conference on Learning Theory},
  year      = {2018}
}""",
    "barron2019complexity": """@article{barron2019complexity,
  author  = {Andrew R. Barron and Jason M. Klusowski},
  title   = {Complexity, Statistical Risk, and Metric Entropy of Deep Nets Using Total Path Variation},
  journal = {arXiv:1902.00800},
  year    = {2019}
}""",
    "zhang2018crown": """@inproceedings{zhang2018crown,
  author    = {Huan Zhang and Tsui-Wei Weng and Pin-Yu Chen and Cho-Jui Hsieh and Luca Daniel},
  title     = {Efficient Neural Network Robustness Certification with General Activation Functions},
  booktitle = {Advances in Neural Information Processing Systems 31},
  year      = {2018}
}""",
    "paulsen2020reludiff": """@inproceedings{paulsen2020reludiff,
  author    = {Brandon Paulsen and Jingbo Wang and Chao Wang},
  title     = {{ReluDiff}: Differential Verification of Deep Neural Networks},
  booktitle = {International Conference on Software Engineering},
  year      = {2020}
}""",
    "bamler2022constriction": """@article{bamler2022constriction,
  author  = {Robert Bamler},
  title   = {Understanding Entropy Coding With Asymmetric Numeral Systems ({ANS}): a Statistician's Perspective},
  journal = {arXiv:2201.01741},
  year    = {2022}
}""",
}


def citation(key: str) -> str:
    """Return the BibTeX entry of a work."""
    if key not in CITATIONS:
        raise KeyError(f"no citation '{key}'; known: {', '.join(sorted(CITATIONS))}")
    return CITATIONS[key]


def cite(source: str) -> str:
    """Write a citation key, and the place in that work if one follows, as people do.

    Example:
        >>> cite("gonon2024thesis, Theorem 3.4.1")
        'Gonon (2024), Theorem 3.4.1'
    """
    key, comma, place = source.partition(",")
    names = [author.split()[-1] for author in _list_authors(key)]
    who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"{who} ({_read_field(key, 'year')}){comma}{place}"


def reference(key: str) -> str:
    """Write a work with its authors, year and title, as a list of references has it.

    Example:
        >>> reference("lybrand2021gpfq")
        'Eric Lybrand, Rayan Saab (2021): A Greedy Algorithm for Quantizing Neural Networks'
    """
    return f"{', '.join(_list_authors(key))} ({_read_field(key, 'year')}): {_read_field(key, 'title')}"


def _list_authors(key: str) -> list[str]:
    return _read_field(key, "author").split(" and ")


def _read_field(key: str, name: str) -> str:
    """Return a field of a work without BibTeX's markup: braces, TeX accents, ends of lines."""
    match = re.search(rf"^  {name} *= {{(.*?)}},?$", citation(key), re.MULTILINE | re.DOTALL)
    assert match is not None, f"{key} has no {name}"
    accented = re.sub(r"\\'(\w)", lambda letter: normalize("NFC", letter[1] + "\N{COMBINING ACUTE ACCENT}"), match[1])
    return " ".join(re.sub(r"[{}$_]", "", accented.replace(r"\infty", "∞")).split())
