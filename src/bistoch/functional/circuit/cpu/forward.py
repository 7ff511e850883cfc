"""Numba kernel: columns of the unitary matrices, a few at a time through all gates, and plans."""

from bistoch.functional.circuit.cpu.job import (
    FIRST,
    SECOND,
    TURN_TWICE,
    XX,
    YY,
    couples_first,
    next_group,
    open_job,
    wide,
)
from bistoch.functional.elastic.cpu.head import whole
from bistoch.functional.kernels.job import own_space
from bistoch.functional.kernels.runtime import jit, kind_of, no_inline
from bistoch.functional.kernels.vector import (
    add_vectors,
    divide_vectors,
    load,
    multiply_add,
    multiply_vectors,
    spread,
    store,
    subtract_product,
    subtract_vectors,
)


def draw_plans(pointer):
    """Take groups until none is left; their plans, and their states if these are to be kept."""
    like, job = kind_of(pointer), open_job(pointer)
    space = own_space(job, like)
    parts, step = (1 << job.wires) // job.columns, wide(like)
    group = next_group(job)
    while group < job.groups:
        for part in range(parts):
            at = space
            if job.states_at:
                at = job.states_at + (group * parts + part) * (job.columns * 2 * step << job.wires)
            begin(job, part, at, like)
            for gate in range(job.gates):
                act(job, group, gate, at, like)
                if gate + 1 == job.mirrored:
                    conjugate(job, at, like)
            measure(job, group, part, at, like)
        group = next_group(job)


@jit
def begin(job, part, at, like):
    """Some columns of the identity."""
    step, zero = wide(like), spread(like(0))
    for row in range(1 << job.wires):
        for column in range(job.columns):
            here = at + (row * job.columns + column) * 2 * step
            store(here, spread(like(1)) if row == part * job.columns + column else zero)
            store(here + step, zero)


@jit
def conjugate(job, at, like):
    """Change the signs of the imaginary parts."""
    step = wide(like)
    for here in range(at + step, at + (job.columns * 2 * step << job.wires), 2 * step):
        store(here, subtract_vectors(spread(like(0)), load(here, like)))


@jit
def act(job, group, gate, at, like):
    """Let a gate act on its two qubits, whatever the others and the column are."""
    no_inline()
    step, place, along_x = wide(like), whole(job.places_at)[gate], job.along_x
    before = not couples_first(job, gate)
    after = couples_first(job, gate) or job.order == TURN_TWICE
    cos = job.cos_at + (group * job.gates + gate) * 4 * step
    sin = job.sin_at + (group * job.gates + gate) * 4 * step
    t0, n0 = tangent(along_x, cos + FIRST * step, sin + FIRST * step, like)
    t1, n1 = tangent(along_x, cos + SECOND * step, sin + SECOND * step, like)
    # the cosines of both turns are left to the coupling
    scale = multiply_vectors(n0, n1)
    if job.order == TURN_TWICE:
        scale = multiply_vectors(scale, scale)
    # on (00, 11) the difference of the angles of XX and YY acts, on (01, 10) their sum
    cx, sx = load(cos + XX * step, like), load(sin + XX * step, like)
    cy, sy = load(cos + YY * step, like), load(sin + YY * step, like)
    cx, sx = multiply_vectors(scale, cx), multiply_vectors(scale, sx)
    c2 = multiply_add(sx, sy, multiply_vectors(cx, cy))
    s2 = subtract_product(cx, sy, multiply_vectors(sx, cy))
    c3 = subtract_product(sx, sy, multiply_vectors(cx, cy))
    s3 = multiply_add(cx, sy, multiply_vectors(sx, cy))
    # numbers whose index differs in the two qubits only are so far apart
    right = (1 << (job.wires - place - 2)) * job.columns * 2 * step
    for left in range(1 << place):
        first = at + left * 4 * right
        for a in range(first, first + right, 2 * step):
            b, c, d = a + right, a + 2 * right, a + 3 * right
            ar, ai = load(a, like), load(a + step, like)
            br, bi = load(b, like), load(b + step, like)
            cr, ci = load(c, like), load(c + step, like)
            dr, di = load(d, like), load(d + step, like)
            if before:
                ar, ai, cr, ci = turned(along_x, t0, ar, ai, cr, ci)
                br, bi, dr, di = turned(along_x, t0, br, bi, dr, di)
                ar, ai, br, bi = turned(along_x, t1, ar, ai, br, bi)
                cr, ci, dr, di = turned(along_x, t1, cr, ci, dr, di)
            ar, ai, dr, di = coupled(c2, s2, ar, ai, dr, di)
            br, bi, cr, ci = coupled(c3, s3, br, bi, cr, ci)
            if after:
                ar, ai, cr, ci = turned(along_x, t0, ar, ai, cr, ci)
                br, bi, dr, di = turned(along_x, t0, br, bi, dr, di)
                ar, ai, br, bi = turned(along_x, t1, ar, ai, br, bi)
                cr, ci, dr, di = turned(along_x, t1, cr, ci, dr, di)
            store(a, ar)
            store(a + step, ai)
            store(b, br)
            store(b + step, bi)
            store(c, cr)
            store(c + step, ci)
            store(d, dr)
            store(d + step, di)


@jit
def tangent(along_x, cos, sin, like):
    """The tangent of half a turn, divided by the length of its axis, and the cosine."""
    # no cosine is zero: one that is has this instead, and no other is changed by it
    c, s = add_vectors(load(cos, like), spread(like(1e-18))), load(sin, like)
    if not along_x:
        s = multiply_vectors(spread(like(1 / 3**0.5)), s)
    return divide_vectors(s, c), c


@jit
def turned(along_x, t, ur, ui, vr, vi):
    """One qubit turned: `1 - i t (X + Y + Z)`, or `1 - i t X`, times the two numbers u and v."""
    if along_x:
        return (
            multiply_add(t, vi, ur),
            subtract_product(t, vr, ui),
            multiply_add(t, ui, vr),
            subtract_product(t, ur, vi),
        )
    # in this form there are more additions than products, which other parts of a core do
    a = subtract_vectors(add_vectors(ui, vi), vr)
    b = add_vectors(add_vectors(ur, vi), vr)
    d = subtract_vectors(add_vectors(ur, ui), vi)
    e = add_vectors(subtract_vectors(ui, ur), vr)
    return (
        multiply_add(t, a, ur),
        subtract_product(t, b, ui),
        multiply_add(t, d, vr),
        multiply_add(t, e, vi),
    )


@jit
def coupled(c, s, ur, ui, vr, vi):
    """Two numbers exchanged in part: `c u - i s v` and `c v - i s u`."""
    return (
        multiply_add(s, vi, multiply_vectors(c, ur)),
        subtract_product(s, vr, multiply_vectors(c, ui)),
        multiply_add(s, ui, multiply_vectors(c, vr)),
        subtract_product(s, ur, multiply_vectors(c, vi)),
    )


@jit
def measure(job, group, part, at, like):
    """Add the squares of some columns to the plan, over the states of the ancilla."""
    step, tokens = wide(like), 1 << job.qubits
    copies = 1 << (job.wires - job.qubits)
    key, is_first = part * job.columns // copies, part * job.columns % copies == 0
    size = copies * job.columns * 2 * step
    for query in range(tokens):
        to = job.plan_at + ((group * tokens + query) * tokens + key) * step
        even = spread(like(0)) if is_first else load(to, like)
        odd = spread(like(0))
        for here in range(at + query * size, at + (query + 1) * size, 2 * step):
            x, y = load(here, like), load(here + step, like)
            even, odd = multiply_add(x, x, even), multiply_add(y, y, odd)
        store(to, add_vectors(even, odd))
