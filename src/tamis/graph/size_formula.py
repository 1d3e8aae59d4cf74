"""Sizes are formulas in the text of an exported program, which torch lets sympy evaluate as if they were Python."""

from __future__ import annotations

import ast
import re

LONGEST = 10_000  # characters
LARGEST = 2**63
LARGEST_POWER = 8
MOST_DIGITS = 1000
# Names in a file become parts of Python source. Of such words alone no call can be made.
NAME = re.compile(r"[\w.+\-]*")
DECIMAL = re.compile(r"-?\d{1,400}(\.\d{0,400})?(e[+-]?\d{1,3})?")
POWERS = ("Pow", "PowByNatural", "FloatPow")
FUNCTIONS = (
    *("Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Mod", "Piecewise", "ExprCondPair"),
    *("Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan", "And", "Or", "Not"),
    *("Eq", "Ne", "Ge", "Le", "Gt", "Lt", "Abs", "floor", "ceiling"),
    *("FloorDiv", "CeilDiv", "CleanDiv", "ModularIndexing", "PythonMod", "Where", "IntTrueDiv", "FloatTrueDiv"),
    *("FloorToInt", "CeilToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
    "IsNonOverlappingAndDenseIndicator",
    *POWERS,
)


def is_size_formula(text: str) -> bool:
    """Return whether a text is only arithmetic of numbers and symbols, which cannot take long to compute.

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
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Div() | ast.Mod()):
            return _is_arithmetic(node.left) and _is_arithmetic(node.right)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)], keywords=assumptions):
            given = [each.value for each in assumptions]
            return NAME.fullmatch(name) is not None and all(isinstance(each, ast.Constant) for each in given)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as number)], keywords=[precision]):
            return DECIMAL.fullmatch(number) is not None and _read_number(precision.value) <= MOST_DIGITS
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return all(map(_is_arithmetic, arguments)) and _is_short(name, arguments)
    return False


def _is_short(function: str, given: list[ast.expr]) -> bool:
    """Return whether the result has no more digits than memory can hold."""
    if function in POWERS:
        # A power of a symbol stays a formula. A power of numbers is computed, and could have any number of digits.
        return len(given) == 2 and _is_symbol(given[0]) and _read_number(given[1]) <= LARGEST_POWER
    if function in ("Float", "RoundDecimal"):  # the second argument says how many digits
        return all(_read_number(each) <= MOST_DIGITS for each in given[1:])
    return True


def _is_symbol(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Symbol")


def _read_number(node: ast.AST) -> float:
    """Return the size of a literal number, as 3, -3, or Integer(3), and infinity for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number)
        case ast.UnaryOp(operand=inside) | ast.Call(func=ast.Name(id="Integer"), args=[inside]):
            return _read_number(inside)
    return float("inf")
