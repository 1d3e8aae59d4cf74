"""Sizes as formulas in the text of an exported program, which torch has sympy evaluate as if they were Python."""

from __future__ import annotations

import ast
import re

LONGEST = 10_000  # characters
LARGEST = 2**63
LARGEST_POWER = 8
MOST_DIGITS = 1000
NAME = re.compile(r"[\w.+\-]*")
POWERS = ("Pow", "PowByNatural", "FloatPow")
FUNCTIONS = (
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Mod", "Piecewise", "ExprCondPair"),
    *("Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan", "And", "Or", "Not"),
    *("Eq", "Ne", "Ge", "Le", "Gt", "Lt", "Abs", "floor", "ceiling"),
    *("FloorDiv", "CeilDiv", "CleanDiv", "ModularIndexing", "PythonMod", "Where", "IntTrueDiv", "FloatTrueDiv"),
    *("FloorToInt", "CeilToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
    "IsNonOverlappingAndDenseIndicator",
    *POWERS,
)


def is_size_formula(text: str) -> bool:
    """Whether a text is nothing but arithmetic of numbers and symbols, which cannot take long to compute.

    Example:
        >>> is_size_formula("Mul(Integer(4), Symbol('s0', positive=True, integer=True))")
        True
        >>> is_size_formula("__import__('os').system('ls')")
        False
    """
    if len(text) > LONGEST:
        return False
    try:
        return _is_arithmetic(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Name() | ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= LARGEST
        case ast.Constant(value=str() as word):  # the name of a symbol, or a number
            return NAME.fullmatch(word) is not None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Div() | ast.Mod()):
            return _is_arithmetic(node.left) and _is_arithmetic(node.right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in FUNCTIONS:
            given = [*arguments, *(each.value for each in keywords)]
            return all(map(_is_arithmetic, given)) and _is_short(name, given)
    return False


def _is_short(function: str, given: list[ast.expr]) -> bool:
    """Whether what it computes has not more digits than there is memory."""
    if function in POWERS:
        return len(given) == 2 and _is_symbol(given[0]) and _number(given[1]) <= LARGEST_POWER
    if function == "Float":
        return all(_number(each) <= MOST_DIGITS for each in given[1:])
    return True


def _is_symbol(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Symbol")


def _number(node: ast.AST) -> float:
    """The size of a number that is written out, as 3, -3, or Integer(3); infinite for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number)
        case ast.UnaryOp(operand=inside) | ast.Call(func=ast.Name(id="Integer"), args=[inside]):
            return _number(inside)
    return float("inf")
