"""The time of a training step with the circuit: the reference and the kernels."""

from bistoch.lab.study import Results, Table

STEP_NOTE = (
    "A training step: 100 pictures of eight tokens through two layers, forward, backward and "
    "update on one thread; circuits of five qubits. Of it the circuit: less the step with softmax."
)


def circuits(smoke: bool) -> dict[int, tuple[str, str]]:
    """Circuits whose training steps are timed, by their layers: the kernels and the reference.

    >>> circuits(smoke=True)
    {1: ("quantum(layers=1, backend='cpu')", "quantum(layers=1, backend='reference')")}
    """
    name = "quantum(layers={}, backend='{}')".format
    return {
        layers: (name(layers, "cpu"), name(layers, "reference"))
        for layers in ((1,) if smoke else (4, 8, 16))
    }


def step_tables(results: Results) -> list[Table]:
    """What a training step takes with the circuit of the reference and of the kernels."""
    seconds = next(iter(results.by_seed("time").values()))["seconds"]
    pairs = {layers: pair for layers, pair in circuits(results.smoke).items() if pair[0] in seconds}
    rows = []
    for layers, pair in pairs.items():
        after, before = (1000 * seconds[name] for name in pair)
        rest = 1000 * seconds["softmax"]
        rows.append([
            str(layers), f"{before:.1f}", f"{after:.1f}", f"{before - rest:.1f}",
            f"{after - rest:.1f}", f"{(before - rest) / (after - rest):.1f}",
        ])  # fmt: skip
    head = ["layers", "step, reference (ms)", "step, kernels (ms)", "of it the circuit, reference",
            "of it the circuit, kernels", "times faster"]  # fmt: skip
    return [Table(head, rows, STEP_NOTE)] if rows else []
