"""The exact gradient of the ring: the same two rounds per iteration, then one for the tokens."""

from typing import NamedTuple

import torch
from torch import Tensor

from bistoch.distributed.ring import Block
from bistoch.distributed.ring_solve import Record, Round, Totals
from bistoch.functional.elastic.operator import Gradients, Upstream
from bistoch.functional.problem import Solution


class Replay(NamedTuple):
    """A solved problem of one rank, and the gradients that arrive at its results."""

    round: Round
    value: Tensor
    solution: Solution
    last: Totals
    records: list[Record]
    upstream: Upstream

    def row_means(self) -> Tensor:
        """`sum_j P_ij dP_ij`, which is the output times its gradient."""
        means = (self.upstream.output * self.solution.output).sum(-1)
        return means if self.upstream.row is None else means + self.upstream.row

    def plan(self, totals: Totals, some: slice, rows: slice, logs: Tensor) -> Tensor:
        """Rows that sum to one over the keys of all ranks."""
        logs = logs - totals.peak[some, rows, None]
        logs -= totals.log_total()[some, rows, None]
        return logs.exp_()

    def backward(self, grads: Gradients) -> None:
        """Add all gradients to those that start as zeros."""
        balance, records = self.round.balance, self.records
        lam, means = balance.lam[:, None], self.row_means()
        final = self.solution.column.masked_fill(self.solution.column == -torch.inf, 0)
        column_grad = self._column_grads(final, means)
        if self.upstream.column is not None:
            arriving = self.upstream.column.masked_fill(self.solution.column == -torch.inf, 0)
            column_grad = column_grad + arriving
        step_grads: list[Tensor] = []
        row_grads: list[Tensor] = []
        for t, record in reversed(list(enumerate(records))):
            omega = record.omega[:, None]
            step = balance.log_mass - record.columns.log_sum()
            step = step.masked_fill(record.columns.total == 0, 0)
            grads.lam.add_((column_grad * omega * step).sum(-1))
            took_step = (omega > 0).to(omega.dtype)
            residual = lam * step - record.column
            grads.omega.add_((column_grad * took_step * residual).sum(-1))
            step_grads.insert(0, omega * lam * column_grad)
            row_grads.insert(0, self._row_grads(record, step_grads[0]))
            column_grad = (1 - omega) * column_grad
            # before the first iteration only a start asks for it
            if t or balance.start is not None:
                column_grad = column_grad - self._from_rows(record, row_grads[0])
        if step_grads:
            grads.log_mass.add_(torch.stack(step_grads).sum(0))
            if balance.log_row_mass is not None:
                grads.log_row_mass.add_(torch.stack(row_grads).sum(0))
        if balance.start is not None:
            grads.start.add_(column_grad)
        self._tokens(final, means, step_grads, row_grads, grads)

    def _column_grads(self, final: Tensor, means: Tensor) -> Tensor:
        """Column sums of Z, the gradient of the last row step."""
        if not self.records and self.round.balance.start is None:
            return torch.zeros_like(final)

        def part_of(owner: int, block: Block) -> Block:
            total = torch.zeros_like(block[1])
            for some, rows, scores in self.round.tiles(owner, block):
                plan = self.plan(self.last, some, rows, scores + block[2][some, None, :])
                plan_grad = self.upstream.output[some, rows] @ block[3][some].mT
                total[some] += (plan * (plan_grad - means[some, rows, None])).sum(-2)
            return (total,)

        block = self.round.block(final, self.value)
        return self.round.ring.summed(block, part_of, _add)[0]

    def _row_grads(self, record: Record, step_grad: Tensor) -> Tensor:
        """`df = -C dh`, for which the columns of all ranks go round."""
        row = self.round.balance.weighed(-record.rows.log_sum())
        found = torch.zeros_like(row)
        columns = record.columns
        block = self.round.block(columns.peak, columns.log_total(), step_grad)
        for owner, (*keys, peak, log_total, grad) in self.round.ring.blocks(block):
            for some, rows, scores in self.round.tiles(owner, tuple(keys)):
                by_column = _columns_to_one(scores, row[some, rows], peak[some], log_total[some])
                found[some, rows] -= (by_column @ grad[some, :, None]).squeeze(-1)
        return found

    def _from_rows(self, record: Record, row_grad: Tensor) -> Tensor:
        """`R^T df`, which travels with the keys."""

        def part_of(owner: int, block: Block) -> Block:
            total = torch.zeros_like(block[1])
            for some, rows, scores in self.round.tiles(owner, block):
                plan = self.plan(record.rows, some, rows, scores + block[2][some, None, :])
                total[some] += (plan.mT @ row_grad[some, rows, None]).squeeze(-1)
            return (total,)

        return self.round.ring.summed(self.round.block(record.column), part_of, _add)[0]

    def _tokens(
        self, final: Tensor, means: Tensor, step_grads: list[Tensor], row_grads: list[Tensor],
        grads: Gradients,
    ) -> None:  # fmt: skip
        """One round for the tokens: what the scores got from all iterations."""
        records, scores_of = self.records, self.round.scores
        sharpness = scores_of.sharpness[:, None, None]
        vectors = [final[..., None]]
        for record, step_grad in zip(records, step_grads, strict=True):
            columns = record.columns
            for vector in (record.column, columns.peak, columns.log_total(), step_grad):
                vectors.append(vector[..., None])
        rows_before = [self.round.balance.weighed(-record.rows.log_sum()) for record in records]

        def part_of(owner: int, block: Block) -> Block:
            key, _, told, value = block
            key_grad, value_grad = torch.zeros_like(key), torch.zeros_like(value)
            for some, rows, scores in self.round.tiles(owner, block):
                own = told[some].mT[:, :, None, :]
                plan = self.plan(self.last, some, rows, scores + own[:, 0])
                arriving = self.upstream.output[some, rows]
                value_grad[some] += plan.mT @ arriving
                grad = plan * (arriving @ value[some].mT - means[some, rows, None])
                for t, record in enumerate(records):
                    column, peak, log_total, step_grad = own[:, 4 * t + 1 : 4 * t + 5].unbind(1)
                    by_column = _columns_to_one(
                        scores, rows_before[t][some, rows], peak[:, 0], log_total[:, 0]
                    )
                    grad -= by_column.mul_(step_grad)
                    by_row = self.plan(record.rows, some, rows, scores + column)
                    grad -= by_row.mul_(row_grads[t][some, rows, None])
                query, factor = scores_of.query[some, rows], sharpness[some]
                from_key = grad @ key[some]
                grads.query[some, rows] += from_key * factor
                key_grad[some] += grad.mT @ (query * factor)
                grads.sharpness[some] += (query * from_key).sum((-2, -1))
                self._bias(owner, some, rows, grad, grads)
            return key_grad, value_grad

        block = self.round.block(torch.cat(vectors, -1), self.value)
        key_grad, value_grad = self.round.ring.summed(block, part_of, _add)
        grads.key.add_(key_grad)
        grads.value.add_(value_grad)

    def _bias(self, owner: int, some: slice, rows: slice, grad: Tensor, grads: Gradients) -> None:
        """Add to the gradient of a bias that several heads may share."""
        bias, index = grads.bias, self.round.scores.mask_index
        if not bias.numel() or index is None:
            return
        if bias.shape[1] == 1:
            grad = grad.sum(-2, keepdim=True)
        else:
            bias = bias[:, rows]
        if bias.shape[2] == 1:
            grad = grad.sum(-1, keepdim=True)
        else:
            bias = bias[..., self.round.ring.columns(owner)]
        bias.index_add_(0, index[some], grad)


def _columns_to_one(scores: Tensor, row: Tensor, peak: Tensor, log_total: Tensor) -> Tensor:
    """A tile of C, the softmax over the rows of all ranks."""
    logs = scores + row[..., None]
    # one after the other: each difference is exact where it matters
    logs -= peak[:, None, :]
    logs -= log_total[:, None, :]
    return logs.exp_()


def _add(one: Block, other: Block) -> Block:
    # into what has come, which nobody else needs
    return tuple(x.add_(y) for x, y in zip(one, other, strict=True))
