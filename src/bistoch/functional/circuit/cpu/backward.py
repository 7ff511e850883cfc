"""Numba kernel: the gradient of all angles, from the unitary matrices and those of the plans.

For an angle of `exp(-i angle/2 A)` with gates B behind it, the gradient is

    1/2 Tr(A B^H H B),   H_rs = -i sum_c (G_sc - G_rc) U_rc conj(U_sc),   G that of the plan

H is Hermitian, a sum of products of I, Z, X, Y on all qubits with real factors. Taking a gate back
turns factors among themselves, and Tr(A ...) is one of them: nothing is added up over states.
"""

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
    load,
    multiply_add,
    multiply_vectors,
    spread,
    store,
    subtract_product,
    subtract_vectors,
)


def differentiate_plans(pointer):
    """Take groups until none is left; write the gradients of their angles."""
    like, job = kind_of(pointer), open_job(pointer)
    # the matrix H, as real and imaginary parts by (r xor s, r), and its factors behind it
    matrix = own_space(job, like)
    factors = matrix + (2 << (2 * job.wires)) * wide(like)
    group = next_group(job)
    while group < job.groups:
        for row in range(1 << job.wires):
            fill_row(job, group, row, matrix, like)
        for flips in range(1 << job.wires):
            expand(job, flips, matrix, factors, like)
        for gate in range(job.gates - 1, -1, -1):
            if gate + 1 == job.mirrored:
                transpose(job, factors, like)
            take_back(job, group, gate, factors, like)
        group = next_group(job)


@jit
def fill_row(job, group, row, matrix, like):
    """Row r of H up to its diagonal, and the same as a column."""
    no_inline()
    step, states, tokens = wide(like), 1 << job.wires, 1 << job.qubits
    ancilla = job.wires - job.qubits
    parts, strip = states // job.columns, job.columns * 2 * step
    grad = job.plan_grad_at + group * tokens * tokens * step
    for other in range(row + 1):
        re, im = spread(like(0)), spread(like(0))
        # states of one token have the same gradient, and H is zero between them
        if other >> ancilla != row >> ancilla:
            for part in range(parts):
                block = job.states_at + (group * parts + part) * states * strip
                a, b = block + row * strip, block + other * strip
                pr, pi = spread(like(0)), spread(like(0))
                for column in range(0, strip, 2 * step):
                    ur, ui = load(a + column, like), load(a + column + step, like)
                    vr, vi = load(b + column, like), load(b + column + step, like)
                    pr = multiply_add(ui, vi, multiply_add(ur, vr, pr))
                    pi = subtract_product(ur, vi, multiply_add(ui, vr, pi))
                key = part * job.columns >> ancilla
                g = subtract_vectors(
                    load(grad + ((other >> ancilla) * tokens + key) * step, like),
                    load(grad + ((row >> ancilla) * tokens + key) * step, like),
                )
                # times -i
                re, im = multiply_add(g, pi, re), subtract_product(g, pr, im)
        flips = (row ^ other) * states
        here, there = matrix + 2 * (flips + row) * step, matrix + 2 * (flips + other) * step
        store(here, re)
        store(here + step, im)
        store(there, re)
        store(there + step, subtract_vectors(spread(like(0)), im))


@jit
def expand(job, flips, matrix, factors, like):
    """The factors of all products that flip these qubits: X and Y flip theirs, I and Z do not.

        2^wires factor = Re i^|x and z| sum_r (-1)^(z.r) H_r(r xor x)

    x: the qubits that are flipped, z: those with Z or Y, since Y = i X Z. The sum is Hadamard's.
    """
    no_inline()
    step, states = wide(like), 1 << job.wires
    first = matrix + 2 * flips * states * step
    apart = 1
    while apart < states:
        for low in range(states):
            if low & apart == 0:
                for a in range(first + 2 * low * step, first + 2 * (low + 1) * step, step):
                    b = a + 2 * apart * step
                    u, v = load(a, like), load(b, like)
                    store(a, add_vectors(u, v))
                    store(b, subtract_vectors(u, v))
        apart *= 2
    for signs in range(states):
        both, index, bit = 0, 0, 0
        while bit < job.wires:
            x, z = flips >> bit & 1, signs >> bit & 1
            both += x & z
            index += (2 * x + z) << (2 * bit)
            bit += 1
        at, to = first + 2 * signs * step, factors + index * step
        # i^both times re + i im has the real part re, -im, -re, im
        value = load(at + step, like) if both & 1 else load(at, like)
        if (both + 1) & 2:
            value = subtract_vectors(spread(like(0)), value)
        store(to, value)


@jit
def transpose(job, factors, like):
    """The factors of the transposed matrix: of those with an odd number of Y the sign changes."""
    step = wide(like)
    for index in range(1 << (2 * job.wires)):
        odd, rest = 0, index
        while rest:
            odd ^= 1 if rest & 3 == 3 else 0
            rest >>= 2
        if odd:
            at = factors + index * step
            store(at, subtract_vectors(spread(like(0)), load(at, like)))


@jit
def take_back(job, group, gate, factors, like):
    """The gradients of the four angles of a gate, and the factors before it.

    The names of the 16 factors: what is on the first qubit, then on the second.
    """
    no_inline()
    step, place, along_x = wide(like), whole(job.places_at)[gate], job.along_x
    before = not couples_first(job, gate)
    after = couples_first(job, gate) or job.order == TURN_TWICE
    number = group * job.gates + gate
    cos, sin = job.cos_at + number * 4 * step, job.sin_at + number * 4 * step
    grad = job.angle_grad_at + number * 4 * step
    a0, b0, g0 = turn_of(along_x, cos + FIRST * step, sin + FIRST * step, like)
    a1, b1, g1 = turn_of(along_x, cos + SECOND * step, sin + SECOND * step, like)
    cx, sx = whole_angle(cos + XX * step, sin + XX * step, like)
    cy, sy = whole_angle(cos + YY * step, sin + YY * step, like)
    u0, u1 = spread(like(0)), spread(like(0))
    right = (1 << (2 * (job.wires - place - 2))) * step
    for left in range(1 << (2 * place)):
        first = factors + left * 16 * right
        for at in range(first, first + right, step):
            # products with I on all other qubits are what the gradients are made of
            own = at == factors
            iz, ix, iy = (
                load(at + right, like),
                load(at + 2 * right, like),
                load(at + 3 * right, like),
            )
            here = at + 4 * right
            zi, zz = load(here, like), load(here + right, like)
            zx, zy = load(here + 2 * right, like), load(here + 3 * right, like)
            here = at + 8 * right
            xi, xz = load(here, like), load(here + right, like)
            xx, xy = load(here + 2 * right, like), load(here + 3 * right, like)
            here = at + 12 * right
            yi, yz = load(here, like), load(here + right, like)
            yx, yy = load(here + 2 * right, like), load(here + 3 * right, like)
            if after:
                if own:
                    u0 = add_vectors(u0, axis_factor(along_x, xi, yi, zi))
                    u1 = add_vectors(u1, axis_factor(along_x, ix, iy, iz))
                xi, yi, zi = turned_back(along_x, a0, b0, g0, xi, yi, zi)
                xz, yz, zz = turned_back(along_x, a0, b0, g0, xz, yz, zz)
                xx, yx, zx = turned_back(along_x, a0, b0, g0, xx, yx, zx)
                xy, yy, zy = turned_back(along_x, a0, b0, g0, xy, yy, zy)
                ix, iy, iz = turned_back(along_x, a1, b1, g1, ix, iy, iz)
                zx, zy, zz = turned_back(along_x, a1, b1, g1, zx, zy, zz)
                xx, xy, xz = turned_back(along_x, a1, b1, g1, xx, xy, xz)
                yx, yy, yz = turned_back(along_x, a1, b1, g1, yx, yy, yz)
            if own:
                store(grad + 2 * step, xx)
                store(grad + 3 * step, yy)
            zi, yx = mixed(cx, sx, zi, yx)
            iz, xy = mixed(cx, sx, iz, xy)
            zx, yi = mixed(cx, sx, zx, yi)
            xz, iy = mixed(cx, sx, xz, iy)
            xy, zi = mixed(cy, sy, xy, zi)
            yx, iz = mixed(cy, sy, yx, iz)
            xi, zy = mixed(cy, sy, xi, zy)
            ix, yz = mixed(cy, sy, ix, yz)
            if before:
                if own:
                    u0 = add_vectors(u0, axis_factor(along_x, xi, yi, zi))
                    u1 = add_vectors(u1, axis_factor(along_x, ix, iy, iz))
                xi, yi, zi = turned_back(along_x, a0, b0, g0, xi, yi, zi)
                xz, yz, zz = turned_back(along_x, a0, b0, g0, xz, yz, zz)
                xx, yx, zx = turned_back(along_x, a0, b0, g0, xx, yx, zx)
                xy, yy, zy = turned_back(along_x, a0, b0, g0, xy, yy, zy)
                ix, iy, iz = turned_back(along_x, a1, b1, g1, ix, iy, iz)
                zx, zy, zz = turned_back(along_x, a1, b1, g1, zx, zy, zz)
                xx, xy, xz = turned_back(along_x, a1, b1, g1, xx, xy, xz)
                yx, yy, yz = turned_back(along_x, a1, b1, g1, yx, yy, yz)
            store(at + right, iz)
            store(at + 2 * right, ix)
            store(at + 3 * right, iy)
            here = at + 4 * right
            store(here, zi)
            store(here + right, zz)
            store(here + 2 * right, zx)
            store(here + 3 * right, zy)
            here = at + 8 * right
            store(here, xi)
            store(here + right, xz)
            store(here + 2 * right, xx)
            store(here + 3 * right, xy)
            here = at + 12 * right
            store(here, yi)
            store(here + right, yz)
            store(here + 2 * right, yx)
            store(here + 3 * right, yy)
    store(grad, u0)
    store(grad + step, u1)


@jit
def whole_angle(cos, sin, like):
    """Cosine and sine of an angle, from those of its half."""
    c, s = load(cos, like), load(sin, like)
    twice = add_vectors(s, s)
    return subtract_product(twice, s, spread(like(1))), multiply_vectors(twice, c)


@jit
def turn_of(along_x, cos, sin, like):
    """What a turn backwards does to (X, Y, Z), from cosine and sine of half its angle.

    About X: `cos` and `sin` of the angle. About X + Y + Z: the first row of a circulant matrix.
    """
    c, s = whole_angle(cos, sin, like)
    if along_x:
        return c, s, s
    # (1 - cos) / 3, and sin times an axis of length one
    third = multiply_vectors(spread(like(1 / 3)), subtract_vectors(spread(like(1)), c))
    part = multiply_vectors(spread(like(1 / 3**0.5)), s)
    return add_vectors(c, third), add_vectors(third, part), subtract_vectors(third, part)


@jit
def turned_back(along_x, a, b, g, x, y, z):
    """The factors of X, Y and Z of a qubit before a turn."""
    if along_x:
        p = multiply_add(b, z, multiply_vectors(a, y))
        return x, p, subtract_product(b, y, multiply_vectors(a, z))
    return (
        multiply_add(g, z, multiply_add(b, y, multiply_vectors(a, x))),
        multiply_add(b, z, multiply_add(a, y, multiply_vectors(g, x))),
        multiply_add(a, z, multiply_add(g, y, multiply_vectors(b, x))),
    )


@jit
def axis_factor(along_x, x, y, z):
    """The sum of the factors along the axis of a turn; its length is left to the caller."""
    return x if along_x else add_vectors(add_vectors(x, y), z)


@jit
def mixed(cos, sin, u, v):
    """Two factors before a coupling: `cos u - sin v` and `cos v + sin u`."""
    return (
        subtract_product(sin, v, multiply_vectors(cos, u)),
        multiply_add(sin, u, multiply_vectors(cos, v)),
    )
