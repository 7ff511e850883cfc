# mypy: ignore-errors
"""The short form: whole heads on chip, all iterations in one launch, forward and exact backward.

A program holds the scores of one head, or of `GROUP` small ones side by side, as `(GROUP, N, M)`.
Scores are made of tokens, or are given (then a plan may be asked for instead of `P V`). The steps
are those of `elastic/reference.py`, the backward is that of `elastic/gradient.py`.
"""

import triton
import triton.language as tl

from bistoch.functional.elastic.triton.decide import LONGEST, ROUNDINGS
from bistoch.functional.elastic.triton.scores import (
    BIAS,
    LOWEST,
    NONE,
    load_tokens,
    multiply,
    own_tokens,
)
from bistoch.functional.kernels.jit import kernel, rounded


@triton.jit
def whole_scores(
    query, key, mask, mask_index, query_real, key_real, sharpness, heads, rows, columns, B, n, m,
    mask_each, mask_row, mask_column,
    GROUP: tl.constexpr, N: tl.constexpr, M: tl.constexpr, FEATURES: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The scores of some heads, minus infinity where forbidden or beyond the ends."""
    here = heads < B
    on_rows = here[:, None] & (rows < n)[None, :]
    on_columns = here[:, None] & (columns < m)[None, :]
    if query_real is not None:
        place = query_real + heads[:, None].to(tl.int64) * n + rows[None, :]
        on_rows = on_rows & (tl.load(place, mask=on_rows, other=0) != 0)
    if key_real is not None:
        place = key_real + heads[:, None].to(tl.int64) * m + columns[None, :]
        on_columns = on_columns & (tl.load(place, mask=on_columns, other=0) != 0)
    allowed = on_rows[:, :, None] & on_columns[:, None, :]
    WORK: tl.constexpr = sharpness.dtype.element_ty
    scores = tl.zeros([GROUP, N, M], WORK)
    if FEATURES > 0:
        # only one head at a time is made of tokens
        head = tl.program_id(0).to(tl.int64)
        query, key = query + head * n * FEATURES, key + head * m * FEATURES
        found = multiply(
            own_tokens(query, rows, n, FEATURES, WIDTH, CHUNK), key, rows, columns, n, m, WORK,
            FEATURES, WIDTH, CHUNK, DOT, PRECISION,
        )  # fmt: skip
        scores += (found * tl.load(sharpness + head))[None, :, :]
    if MASK != NONE:
        which = heads
        if mask_index is not None:
            which = tl.load(mask_index + heads, mask=here, other=0)
        at = which.to(tl.int64)[:, None, None] * mask_each
        at += rows.to(tl.int64)[None, :, None] * mask_row
        at += columns.to(tl.int64)[None, None, :] * mask_column
        if MASK == BIAS:
            scores += tl.load(mask + at, mask=allowed, other=0.0)
        else:
            allowed = allowed & (tl.load(mask + at, mask=allowed, other=0) != 0)
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def log_sum(logs, AXIS: tl.constexpr):
    """`exp(peak) * total` along an axis; a sum without terms has the lowest peak and total zero."""
    peak = tl.maximum(tl.max(logs, AXIS), LOWEST)
    total = tl.sum(tl.exp(logs - tl.expand_dims(peak, AXIS)), AXIS)
    return peak, total


@triton.jit
def spread(residual, alive):
    """How far the live entries of each head lie apart, and their mean and number."""
    highest = tl.max(tl.where(alive, residual, float("-inf")), 1)
    lowest = tl.min(tl.where(alive, residual, float("inf")), 1)
    count = tl.sum(tl.where(alive, 1.0, 0.0).to(residual.dtype), 1)
    mean = tl.sum(tl.where(alive, residual, 0.0), 1) / tl.maximum(count, 1.0)
    return tl.where(count > 0, highest - lowest, 0.0), mean, count


@kernel
def heads_kernel(
    query, key, value, mask, mask_index, query_real, key_real, sharpness, lam, omega, log_mass,
    log_row_mass, start, tol, output, row_out, column_out, error_out, iterations_out,
    history_rows, history_columns, history_totals, history_omega,
    B, n, m, T, mask_each, mask_row, mask_column, rounding,
    WATCH: tl.constexpr, CHOOSE: tl.constexpr, PLAN: tl.constexpr, KEEP: tl.constexpr,
    GROUP: tl.constexpr, N: tl.constexpr, M: tl.constexpr, FEATURES: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    MASK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row and column steps until the last row step, and what it gives."""
    heads = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    rows, columns = tl.arange(0, N), tl.arange(0, M)
    here, wide = heads < B, heads.to(tl.int64)
    in_rows = here[:, None] & (rows < n)[None, :]
    in_columns = here[:, None] & (columns < m)[None, :]
    scores = whole_scores(
        query, key, mask, mask_index, query_real, key_real, sharpness, heads, rows, columns, B, n,
        m, mask_each, mask_row, mask_column,
        GROUP, N, M, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
    )  # fmt: skip
    WORK: tl.constexpr = sharpness.dtype.element_ty
    elastic = tl.load(lam + heads, mask=here, other=0.0)
    step = tl.full([GROUP], 1.0, WORK)
    if omega is not None:
        step = tl.load(omega + heads, mask=here, other=1.0)
    target = tl.load(log_mass + wide[:, None] * m + columns[None, :], mask=in_columns, other=0.0)
    column = tl.zeros([GROUP, M], WORK)
    if start is not None:
        place = start + wide[:, None] * m + columns[None, :]
        column += tl.load(place, mask=in_columns, other=0.0)
    weights = tl.zeros([GROUP, N], WORK)
    if log_row_mass is not None:
        place = log_row_mass + wide[:, None] * n + rows[None, :]
        weights += tl.load(place, mask=in_rows, other=0.0)
    running = here
    ran = tl.zeros([GROUP], tl.int64)
    before, least = tl.zeros([GROUP, M], WORK), tl.zeros([GROUP], WORK)
    row_at = history_rows + wide[:, None] * (T + 1) * 2 * n + rows[None, :]
    column_at = history_columns + wide[:, None] * (2 * T + 1) * m + columns[None, :]
    total_at = history_totals + wide[:, None] * T * m + columns[None, :]
    if KEEP:
        tl.store(column_at + T * m, column, mask=in_columns)
    for t in range(T):
        peak, total = log_sum(scores + column[:, None, :], 2)
        alive = total > 0
        log_total = tl.log(tl.where(alive, total, 1.0))
        row = tl.where(alive, -(peak + log_total), 0.0) + weights
        if KEEP:
            rest = tl.where(alive, (row + peak) + log_total, 0.0)
            tl.store(row_at + 2 * t * n, row, mask=in_rows)
            tl.store(row_at + (2 * t + 1) * n, rest, mask=in_rows)
        peak, total = log_sum(scores + row[:, :, None], 1)
        seen = total > 0
        log_total = tl.log(tl.where(seen, total, 1.0))
        if KEEP:
            tl.store(column_at + t * m, peak, mask=in_columns)
            tl.store(total_at + t * m, log_total, mask=in_columns)
        change = elastic[:, None] * tl.where(seen, target - (peak + log_total), 0.0) - column
        if WATCH:
            error, mean, count = spread(change, seen)
            running = running & (error > tl.load(tol))
            if CHOOSE:
                now = tl.where(seen, change - mean[:, None], 0.0)
                if t > 0:
                    turned = before - now
                    gain, size = tl.sum(before * turned, 1), tl.sum(turned * turned, 1)
                    level = tl.max(tl.where(in_rows, tl.abs(row), 0.0), 1)
                    # a change that is no more than the rounding of row potentials says nothing
                    noise = ROUNDINGS * rounding * (1.0 + level)
                    known = (gain > 0) & (size > count * noise * noise)
                    best = step * tl.where(known, gain, 1.0) / tl.where(known, size, 1.0)
                    longest = 1.0 / tl.maximum(1.0 - elastic, 1.0 / LONGEST)
                    extra = tl.minimum(tl.maximum(best, 1.0), longest) - 1.0
                    trust = 2.0 - error / tl.where(least > 0, least, 1.0)
                    trust = tl.minimum(tl.maximum(trust, 0.0), 1.0)
                    step = 1.0 + trust * tl.where(known, extra, 0.0)
                    least = tl.minimum(least, error)
                else:
                    least = error
                before = now
        column = tl.where(running[:, None], column + step[:, None] * change, column)
        ran += tl.where(running, 1, 0)
        if KEEP:
            tl.store(column_at + (T + t + 1) * m, column, mask=in_columns)
            tl.store(history_omega + wide * T + t, step, mask=here)

    logs = scores + column[:, None, :]
    peak, total = log_sum(logs, 2)
    alive = total > 0
    total = tl.where(alive, total, 1.0)
    log_total = tl.log(total)
    found = -(peak + log_total)
    row = tl.where(alive, found, 0.0) + weights
    place = wide[:, None] * n + rows[None, :]
    tl.store(row_out + place, tl.where(alive, found, float("-inf")), mask=in_rows)
    if KEEP:
        rest = tl.where(alive, (row + peak) + log_total, 0.0)
        tl.store(row_at + 2 * T * n, row, mask=in_rows)
        tl.store(row_at + (2 * T + 1) * n, rest, mask=in_rows)
    shares = tl.exp(logs - peak[:, :, None])
    if PLAN:
        plan = shares / total[:, :, None]
        at = wide[:, None, None] * n * m + rows[None, :, None] * m + columns[None, None, :]
        tl.store(output + at, plan, mask=in_rows[:, :, None] & in_columns[:, None, :])
    elif VALUES > 0:
        head = tl.program_id(0).to(tl.int64)
        values = load_tokens(value + head * m * VALUES, columns, m, VALUES, VALUE_WIDTH)
        given = rounded(tl.reshape(shares, [N, M]), PRECISION)
        result = tl.dot(given, values, input_precision=PRECISION, out_dtype=WORK)
        # a mean of values also if weights were rounded
        sums = tl.sum(given, 1)
        result = result / tl.where(sums > 0, sums, 1.0)[:, None]
        features = tl.arange(0, VALUE_WIDTH)
        at = output + head * n * VALUES + rows[:, None] * VALUES + features[None, :]
        tl.store(at, result, mask=(rows < n)[:, None] & (features < VALUES)[None, :])
    peak, total = log_sum(scores + row[:, :, None], 1)
    seen = total > 0
    log_total = tl.log(tl.where(seen, total, 1.0))
    change = elastic[:, None] * tl.where(seen, target - (peak + log_total), 0.0) - column
    error, _, _ = spread(change, seen)
    place = wide[:, None] * m + columns[None, :]
    tl.store(column_out + place, tl.where(seen, column, float("-inf")), mask=in_columns)
    tl.store(error_out + heads, error, mask=here)
    tl.store(iterations_out + heads, ran, mask=here)


@kernel
def heads_grad_kernel(
    query, key, value, output_grad, mask, mask_index, query_real, key_real, sharpness, lam,
    column_out, iterations, row_above, column_above, history_rows, history_columns, history_totals,
    history_omega, log_mass,
    query_grad, key_grad, value_grad, score_grad, lam_grad, omega_grad, sharpness_grad,
    log_mass_grad, row_mass_grad, start_grad,
    B, n, m, T, mask_each, mask_row, mask_column,
    PLAN: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_CHUNK: tl.constexpr, MASK: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through the last row step and all iterations, then to what scores were made of."""
    heads = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    rows, columns = tl.arange(0, N), tl.arange(0, M)
    here, wide = heads < B, heads.to(tl.int64)
    in_rows = here[:, None] & (rows < n)[None, :]
    in_columns = here[:, None] & (columns < m)[None, :]
    scores = whole_scores(
        query, key, mask, mask_index, query_real, key_real, sharpness, heads, rows, columns, B, n,
        m, mask_each, mask_row, mask_column,
        GROUP, N, M, FEATURES, WIDTH, CHUNK, MASK, DOT, PRECISION,
    )  # fmt: skip
    WORK: tl.constexpr = sharpness.dtype.element_ty
    head = tl.program_id(0).to(tl.int64)
    row_at = history_rows + wide[:, None] * (T + 1) * 2 * n + rows[None, :]
    column_at = history_columns + wide[:, None] * (2 * T + 1) * m + columns[None, :]
    total_at = history_totals + wide[:, None] * T * m + columns[None, :]
    elastic = tl.load(lam + heads, mask=here, other=0.0)
    ran = tl.load(iterations + heads, mask=here, other=0)
    place = wide[:, None] * m + columns[None, :]
    last = tl.load(column_out + place, mask=in_columns, other=float("-inf"))
    seen = last > float("-inf")
    target = tl.load(log_mass + place, mask=in_columns, other=0.0)

    # the last row step: Z = P * (dP - row means)
    logs = scores + tl.where(seen, last, 0.0)[:, None, :]
    logs += tl.load(row_at + 2 * T * n, mask=in_rows, other=0.0)[:, :, None]
    logs -= tl.load(row_at + (2 * T + 1) * n, mask=in_rows, other=0.0)[:, :, None]
    plan = tl.exp(logs)
    slope = tl.zeros([GROUP, N, M], WORK)
    if PLAN:
        at = wide[:, None, None] * n * m + rows[None, :, None] * m + columns[None, None, :]
        inside = in_rows[:, :, None] & in_columns[:, None, :]
        slope += tl.load(output_grad + at, mask=inside, other=0.0)
    elif VALUES > 0:
        arriving = output_grad + head * n * VALUES
        found = multiply(
            own_tokens(arriving, rows, n, VALUES, VALUE_WIDTH, VALUE_CHUNK),
            value + head * m * VALUES, rows, columns, n, m, WORK, VALUES, VALUE_WIDTH, VALUE_CHUNK,
            WORK, PRECISION,
        )  # fmt: skip
        slope += found[None, :, :]
        result = tl.dot(
            rounded(tl.trans(tl.reshape(plan, [N, M])), PRECISION),
            load_tokens(arriving, rows, n, VALUES, VALUE_WIDTH), input_precision=PRECISION,
            out_dtype=WORK,
        )  # fmt: skip
        features = tl.arange(0, VALUE_WIDTH)
        at = value_grad + head * m * VALUES + columns[:, None] * VALUES + features[None, :]
        tl.store(at, result, mask=(columns < m)[:, None] & (features < VALUES)[None, :])
    mean = tl.sum(plan * slope, 2)
    if row_above is not None:
        mean += tl.load(row_above + wide[:, None] * n + rows[None, :], mask=in_rows, other=0.0)
    slope = plan * (slope - mean[:, :, None])
    column_grad = tl.sum(slope, 1)
    if column_above is not None:
        column_grad += tl.load(column_above + place, mask=in_columns & seen, other=0.0)

    lams, omegas = tl.zeros([GROUP], WORK), tl.zeros([GROUP], WORK)
    masses, row_masses = tl.zeros([GROUP, M], WORK), tl.zeros([GROUP, N], WORK)
    for back in range(T):
        t = T - 1 - back
        running = here & (t < ran)
        move, full = running[:, None] & seen, running[:, None] & in_rows
        peak = tl.load(column_at + t * m, mask=move, other=0.0)
        log_total = tl.load(total_at + t * m, mask=move, other=0.0)
        row = tl.load(row_at + 2 * t * n, mask=full, other=0.0)
        rest = tl.load(row_at + (2 * t + 1) * n, mask=full, other=0.0)
        column = tl.load(column_at + (T + t) * m, mask=move, other=0.0)
        omega = tl.load(history_omega + wide * T + t, mask=running, other=0.0)
        step = tl.where(move, target - (peak + log_total), 0.0)
        lams += omega * tl.sum(column_grad * step, 1)
        omegas += tl.sum(column_grad * tl.where(move, elastic[:, None] * step - column, 0.0), 1)
        step_grad = tl.where(move, (omega * elastic)[:, None] * column_grad, 0.0)
        masses += step_grad
        # C = exp(S + f - LSE_i(S + f)); problems that had stopped add zeros
        logs = scores + row[:, :, None]
        logs -= peak[:, None, :]
        logs -= log_total[:, None, :]
        part = tl.where(running[:, None, None], tl.exp(logs), 0.0) * step_grad[:, None, :]
        row_grad = -tl.sum(part, 2)
        row_masses += row_grad
        slope -= part
        # R = softmax_row(S + g)
        logs = scores + column[:, None, :]
        logs += row[:, :, None]
        logs -= rest[:, :, None]
        part = tl.where(running[:, None, None], tl.exp(logs), 0.0) * row_grad[:, :, None]
        column_grad = (1.0 - omega)[:, None] * column_grad - tl.sum(part, 1)
        slope -= part

    tl.store(lam_grad + heads, lams, mask=here)
    tl.store(omega_grad + heads, omegas, mask=here)
    tl.store(log_mass_grad + place, masses, mask=in_columns)
    if row_mass_grad is not None:
        tl.store(row_mass_grad + wide[:, None] * n + rows[None, :], row_masses, mask=in_rows)
    if start_grad is not None:
        tl.store(start_grad + place, column_grad, mask=in_columns)
    if score_grad is not None:
        at = wide[:, None, None] * n * m + rows[None, :, None] * m + columns[None, None, :]
        tl.store(score_grad + at, slope, mask=in_rows[:, :, None] & in_columns[:, None, :])
    if FEATURES > 0:
        matrix = rounded(tl.reshape(slope, [N, M]), PRECISION)
        sharp = tl.load(sharpness + head)
        features = tl.arange(0, WIDTH)
        some = (features < FEATURES)[None, :]
        tokens = load_tokens(key + head * m * FEATURES, columns, m, FEATURES, WIDTH).to(WORK)
        found = tl.dot(matrix, tokens, input_precision=PRECISION, out_dtype=WORK)
        at = query_grad + head * n * FEATURES + rows[:, None] * FEATURES + features[None, :]
        tl.store(at, found * sharp, mask=(rows < n)[:, None] & some)
        tokens = load_tokens(query + head * n * FEATURES, rows, n, FEATURES, WIDTH).to(WORK)
        tl.store(sharpness_grad + head, tl.sum(tl.sum(tokens * found, 1), 0))
        found = tl.dot(tl.trans(matrix), tokens, input_precision=PRECISION, out_dtype=WORK)
        at = key_grad + head * m * FEATURES + columns[:, None] * FEATURES + features[None, :]
        tl.store(at, found * sharp, mask=(columns < m)[:, None] & some)
