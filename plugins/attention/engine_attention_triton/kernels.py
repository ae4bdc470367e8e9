"""The kernels: store keys and values, attend to any batch, attend to decode with split contexts.

Cache of one layer: [2, blocks, K, B, D]: the keys (then values) of one block and head are one
contiguous tile. R requests, T tokens, H query heads in K groups of G, D head size, B block size.
Every launch depends on padded shapes only; what is live is read from device memory.

Softmax is computed online (Milakov and Gimelshein 2018, arXiv:1805.02867), in base 2, with
float32 sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.ops.overlap_kernels import wait_for_inputs


@triton.jit
def store_kv(
    key,
    value,
    out,
    cache,
    slots,
    key_stride,
    value_stride,
    out_stride,
    plane,
    heads: tl.constexpr,
    group: tl.constexpr,
    depth: tl.constexpr,
    block_size: tl.constexpr,
    padded_depth: tl.constexpr,
    early: tl.constexpr,
):
    """One program stores one token's head.

    A slot of -1 stores nothing, and zeroes what the token attends to: no request computes a
    padded row, and what was in its memory before could be NaN.
    """
    wait_for_inputs(early)
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    lane = tl.arange(0, padded_depth)
    mask = lane < depth
    if slot < 0:
        nothing = tl.zeros([padded_depth], out.dtype.element_ty)
        for member in range(group):
            at = token * out_stride + (head * group + member) * depth + lane
            tl.store(out + at, nothing, mask=mask)
    else:
        tile = (slot // block_size) * heads + head
        at = (tile * block_size + slot % block_size) * depth + lane
        k = tl.load(key + token * key_stride + head * depth + lane, mask=mask)
        v = tl.load(value + token * value_stride + head * depth + lane, mask=mask)
        tl.store(cache + at, k.to(cache.dtype.element_ty), mask=mask)
        tl.store(cache + plane + at, v.to(cache.dtype.element_ty), mask=mask)


@triton.jit
def _scores(
    q,
    k,
    query_at,
    key_at,
    seen,
    scale,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    exact: tl.constexpr,
):
    """Scores of a tile in base 2, -inf where a query doesn't see a key."""
    if exact:
        s = tl.dot(q, k, input_precision="ieee") * scale
    else:
        s = tl.dot(q, k) * scale
    if soft_cap > 0:
        # tanh by exponentials: 1 - 2 / (exp(2x) + 1), safe at both ends.
        s = soft_cap * (1 - 2 / (tl.exp(2 * s / soft_cap) + 1))
    visible = seen & (key_at[None, :] <= query_at[:, None])
    if window > 0:
        visible &= key_at[None, :] > query_at[:, None] - window
    return tl.where(visible, s * 1.4426950408889634, float("-inf"))


@triton.jit
def _attend_tile(
    q,
    query_at,
    top,
    total,
    sums,
    cache,
    plane,
    table,
    base,
    end,
    head,
    lane,
    deep,
    scale,
    heads: tl.constexpr,
    depth: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    exact: tl.constexpr,
):
    """Take the keys [base, base + tile) of one request and head into a running softmax.

    Returns the highest score of each row, the sum of its weights, and its weighted values.
    """
    key_at = base + tl.arange(0, tile)
    seen = key_at < end
    block = tl.load(table + key_at // block_size, mask=seen, other=0).to(tl.int64)
    place = ((block * heads + head) * block_size + key_at % block_size) * depth
    k = tl.load(
        cache + place[None, :] + lane[:, None], mask=seen[None, :] & deep[:, None], other=0.0
    ).to(q.dtype)
    s = _scores(q, k, query_at, key_at, seen[None, :], scale, window, soft_cap, exact)
    peak = tl.maximum(top, tl.max(s, 1))
    # A row that has seen nothing yet must not compute -inf minus -inf.
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    p = tl.exp2(s - safe[:, None])
    fade = tl.exp2(top - safe)
    v = tl.load(
        cache + plane + place[:, None] + lane[None, :],
        mask=seen[:, None] & deep[None, :],
        other=0.0,
    ).to(q.dtype)
    if exact:
        sums = sums * fade[:, None] + tl.dot(p.to(q.dtype), v, input_precision="ieee")
    else:
        sums = sums * fade[:, None] + tl.dot(p.to(q.dtype), v)
    return peak, total * fade + tl.sum(p, 1), sums


@triton.jit
def attend_any(
    query,
    out,
    cache,
    tables,
    query_start,
    seq_lens,
    num_reqs,
    query_stride,
    out_stride,
    table_stride,
    plane,
    scale,
    heads: tl.constexpr,
    group: tl.constexpr,
    depth: tl.constexpr,
    padded_depth: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    queries: tl.constexpr,
    rows: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    exact: tl.constexpr,
    early: tl.constexpr,
):
    """One program computes `queries` tokens of one request for one key/value head.

    Request r gets `ceil(tokens / queries)` programs at most one more than its share of
    `T // queries + R`, so the grid needs no look at the live batch.
    """
    wait_for_inputs(early)
    program, head = tl.program_id(0), tl.program_id(1)
    # Find the request whose programs include this one, by bisection.
    low, high = 0, num_reqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // queries + middle <= program:
            low = middle + 1
        else:
            high = middle
    request = low - 1
    start = tl.load(query_start + request)
    count = tl.load(query_start + request + 1) - start
    first = (program - (start // queries + request)) * queries
    if first < count:
        length = tl.load(seq_lens + request)
        before = length - count
        row = tl.arange(0, rows)
        token, member = first + row // group, row % group
        live = (token < count) & (row < queries * group)
        lane = tl.arange(0, padded_depth)
        deep = lane < depth
        at = (start + token)[:, None] * query_stride + (head * group + member)[:, None] * depth
        q = tl.load(query + at + lane[None, :], mask=live[:, None] & deep[None, :], other=0.0)
        query_at = before + token
        top = tl.full([rows], float("-inf"), tl.float32)
        total = tl.zeros([rows], tl.float32)
        sums = tl.zeros([rows, padded_depth], tl.float32)
        end = tl.minimum(before + first + queries, length)
        begin = 0
        if window > 0:
            begin = tl.maximum(before + first - window + 1, 0) // tile * tile
        for base in range(begin, end, tile):
            top, total, sums = _attend_tile(
                q,
                query_at,
                top,
                total,
                sums,
                cache,
                plane,
                tables + request * table_stride,
                base,
                end,
                head,
                lane,
                deep,
                scale,
                heads,
                depth,
                block_size,
                tile,
                window,
                soft_cap,
                exact,
            )
        # Rows that are no query have seen nothing.
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        to = (start + token)[:, None] * out_stride + (head * group + member)[:, None] * depth
        tl.store(
            out + to + lane[None, :],
            result.to(out.dtype.element_ty),
            mask=live[:, None] & deep[None, :],
        )


@triton.jit
def attend_decode(
    query,
    cache,
    tables,
    seq_lens,
    out,
    part_sums,
    part_tops,
    part_totals,
    query_stride,
    out_stride,
    table_stride,
    plane,
    scale,
    heads: tl.constexpr,
    group: tl.constexpr,
    depth: tl.constexpr,
    padded_depth: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    rows: tl.constexpr,
    splits: tl.constexpr,
    window: tl.constexpr,
    soft_cap: tl.constexpr,
    exact: tl.constexpr,
    early: tl.constexpr,
):
    """One program attends one request's token to one share of its context, for one head.

    With a single share it writes the result, otherwise what `join_splits` needs.
    """
    wait_for_inputs(early)
    request, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(seq_lens + request)
    first = 0
    if window > 0:
        first = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - first, splits), tile) * tile
    begin = first + split * share
    end = tl.minimum(begin + share, length)
    row = tl.arange(0, rows)
    lane = tl.arange(0, padded_depth)
    deep = lane < depth
    live = row < group
    at = request * query_stride + (head * group + row)[:, None] * depth
    q = tl.load(query + at + lane[None, :], mask=live[:, None] & deep[None, :], other=0.0)
    query_at = tl.zeros([rows], tl.int32) + (length - 1)
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, padded_depth], tl.float32)
    for base in range(begin, end, tile):
        top, total, sums = _attend_tile(
            q,
            query_at,
            top,
            total,
            sums,
            cache,
            plane,
            tables + request * table_stride,
            base,
            end,
            head,
            lane,
            deep,
            scale,
            heads,
            depth,
            block_size,
            tile,
            window,
            soft_cap,
            exact,
        )
    mask = live[:, None] & deep[None, :]
    if splits == 1:
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        to = request * out_stride + (head * group + row)[:, None] * depth + lane[None, :]
        tl.store(out + to, result.to(out.dtype.element_ty), mask=mask)
    else:
        slot = ((request * heads + head) * splits + split) * group + row
        tl.store(part_tops + slot, top, mask=live)
        tl.store(part_totals + slot, total, mask=live)
        tl.store(part_sums + slot[:, None] * depth + lane[None, :], sums, mask=mask)


@triton.jit
def join_splits(
    part_sums,
    part_tops,
    part_totals,
    out,
    out_stride,
    heads: tl.constexpr,
    group: tl.constexpr,
    depth: tl.constexpr,
    padded_depth: tl.constexpr,
    splits: tl.constexpr,
    padded_splits: tl.constexpr,
    early: tl.constexpr,
):
    """One program joins the shares of one request's query head; no context at all gives zero."""
    wait_for_inputs(early)
    request, wide_head = tl.program_id(0), tl.program_id(1)
    head, member = wide_head // group, wide_head % group
    split = tl.arange(0, padded_splits)
    lane = tl.arange(0, padded_depth)
    real = split < splits
    slot = ((request * heads + head) * splits + split) * group + member
    tops = tl.load(part_tops + slot, mask=real, other=float("-inf"))
    peak = tl.max(tops, 0)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    weight = tl.exp2(tops - safe)
    totals = tl.load(part_totals + slot, mask=real, other=0.0)
    total = tl.sum(totals * weight, 0)
    mask = real[:, None] & (lane < depth)[None, :]
    sums = tl.load(part_sums + slot[:, None] * depth + lane[None, :], mask=mask, other=0.0)
    result = tl.sum(sums * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    at = request * out_stride + wide_head * depth + lane
    tl.store(out + at, result.to(out.dtype.element_ty), mask=lane < depth)
