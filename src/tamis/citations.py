"""The works that tamis implements: key → BibTeX. Every bound and method names its key in its docstring."""

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
}


def citation(key: str) -> str:
    """The BibTeX entry of a work."""
    if key not in CITATIONS:
        raise KeyError(f"no citation '{key}'; known: {', '.join(sorted(CITATIONS))}")
    return CITATIONS[key]
