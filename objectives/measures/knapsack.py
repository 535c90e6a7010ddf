"""What to take where each thing has a cost: the 0/1 knapsack, solved exactly."""

from collections.abc import Sequence


def best_within(gains: Sequence[float], costs: Sequence[int], budget: float) -> tuple[int, ...]:
    """The places of the things of most gain that the budget pays, ascending; those that gain
    nothing are left. Costs are whole numbers >= 0.

    Dynamic programming over costs: of all choices among the first few things only those are kept
    that no cheaper choice equals. At most budget + 1 of these have whole costs of their own.
    """
    front: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for thing, (gain, cost) in enumerate(zip(gains, costs, strict=True)):
        longer = [(p + cost, g + gain, (*taken, thing)) for p, g, taken in front]
        both = [*front, *(one for one in longer if one[0] <= budget)]
        front = []
        for choice in sorted(both, key=lambda one: (one[0], -one[1])):
            if not front or choice[1] > front[-1][1]:
                front.append(choice)
    return front[-1][2]
