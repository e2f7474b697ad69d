/* The requester's half of the tests. */
#include "rc_peer.h"

static const struct kind kinds[] = {
	{ "send", IBV_WR_SEND, 1, 1, 0, 0 },
	{ "rnr", IBV_WR_SEND, 1, 1, 0, 0 },	/* its receives are posted late */
	{ "send-imm", IBV_WR_SEND_WITH_IMM, 1, 1, 0, 0 },
	{ "write", IBV_WR_RDMA_WRITE, 0, 1, 0, 0 },
	{ "write-imm", IBV_WR_RDMA_WRITE_WITH_IMM, 1, 1, 0, 0 },
	{ "read", IBV_WR_RDMA_READ, 0, 0, 1, 0 },
	{ "faa", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 0, 1 },
	{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP, 0, 0, 0, 1 },
	{ "atomic-write", IBV_WR_ATOMIC_WRITE, 0, 1, 0, 0 },
};

const struct kind *kind_of(const struct end *e)
{
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (is(e, kinds[i].test))
			return kinds + i;
	return NULL;
}

/* What the counter holds before request k. */
uint64_t counted(const struct kind *kind, uint64_t k)
{
	return kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? FIRST_COUNT + k * ADDEND : FIRST_COUNT + (k + 1) / 2;
}

static int request_uniform(struct end *e, const struct kind *kind)
{
	const struct plan *p = &e->plan;
	uint32_t posted = 0, signaled = 0;
	while (signaled < p->count) {
		while (posted < p->count && posted - signaled < p->window) {
			int last = posted + 1 == p->count, back = kind->fetches || kind->atomic;
			int flags = last || (posted + 1) % p->signal == 0 ? IBV_SEND_SIGNALED : 0;
			if (post(e, posted, kind->opcode, slot(e, back ? p->count + posted : posted), p->size,
				 kind->atomic ? counter_at(e) : (back ? p->count + posted : posted) * e->stride, flags))
				return -1;
			posted++;
		}
		uint32_t next = (signaled / p->signal + 1) * p->signal;
		if (next > p->count)
			next = p->count;
		if (finish(e, next - 1, IBV_WC_SUCCESS))
			return -1;
		signaled = next;
	}
	for (uint32_t k = 0; k < p->count; k++) {
		uint64_t old;
		if (kind->fetches && check_bytes(e, p->count + k, p->size, 1000 + k))
			return -1;
		memcpy(&old, slot(e, p->count + k), 8);
		CHECK(!kind->atomic || old == counted(kind, k), "atomic %u found %lx, not %lx", k, old, counted(kind, k));
	}
	return 0;
}

/* All kinds in one row, COUNT times, with a completion for the last only. */
static int request_mixed(struct end *e)
{
	const struct plan *p = &e->plan;
	for (uint32_t k = 0; k < p->count; k += 4) {
		if (post(e, k, IBV_WR_RDMA_WRITE, slot(e, k), p->size, k * e->stride, 0) ||
		    post(e, k + 1, IBV_WR_RDMA_READ, slot(e, p->count + k + 1), p->size, (p->count + k + 1) * e->stride, 0) ||
		    post(e, k + 2, IBV_WR_SEND_WITH_IMM, slot(e, k + 2), p->size, 0, 0) ||
		    post(e, k + 3, IBV_WR_ATOMIC_FETCH_AND_ADD, slot(e, p->count + k + 3), 8, counter_at(e), 0) ||
		    post(e, k + 3, IBV_WR_RDMA_WRITE_WITH_IMM, slot(e, k + 3), p->size, (k + 3) * e->stride, k + 4 == p->count ? IBV_SEND_SIGNALED : 0))
			return -1;
	}
	if (finish(e, p->count - 1, IBV_WC_SUCCESS))
		return -1;
	for (uint32_t k = 0; k < p->count; k += 4) {
		uint64_t old;
		if (check_bytes(e, p->count + k + 1, p->size, 1000 + k + 1))
			return -1;
		memcpy(&old, slot(e, p->count + k + 3), 8);
		CHECK(old == FIRST_COUNT + k / 4 * ADDEND, "atomic %u found %lx", k, old);
	}
	return 0;
}

/* Reads a message and sends on what it has read: without the fence the send would carry old bytes. */
static int request_fence(struct end *e)
{
	const struct plan *p = &e->plan;
	for (uint32_t k = 0; k < p->count; k++)
		if (post(e, k, IBV_WR_RDMA_READ, slot(e, p->count + k), p->size, (p->count + k) * e->stride, 0) ||
		    post(e, k, IBV_WR_SEND, slot(e, p->count + k), p->size, 0, IBV_SEND_FENCE | IBV_SEND_SIGNALED))
			return -1;
	for (uint32_t k = 0; k < p->count; k++)
		if (finish(e, k, IBV_WC_SUCCESS))
			return -1;
	return 0;
}

/* Both ends send at once. */
static int request_both(struct end *e)
{
	const struct plan *p = &e->plan;
	for (uint32_t k = 0; k < p->count; k++)
		if (post(e, k, IBV_WR_SEND, slot(e, k), p->size, 0, IBV_SEND_SIGNALED))
			return -1;
	for (uint32_t k = 0; k < p->count; k++)
		if (finish(e, k, IBV_WC_SUCCESS) || arrived(e, k, IBV_WC_RECV, p->size, 0, 0) || check_bytes(e, p->count + k, p->size, 1000 + k))
			return -1;
	return 0;
}

/* Writes through a memory window, sends with invalidate, and finds the window gone. */
static int request_invalidate(struct end *e)
{
	const struct plan *p = &e->plan;
	uint32_t region = e->peer.rkey;
	CHECK(e->peer.window_rkey, "the peer has no memory window");
	e->peer.rkey = e->peer.window_rkey;
	if (post(e, 0, IBV_WR_RDMA_WRITE, slot(e, 0), p->size, 0, IBV_SEND_SIGNALED) || finish(e, 0, IBV_WC_SUCCESS) ||
	    post(e, 1, IBV_WR_SEND_WITH_INV, slot(e, 1), p->size, 0, IBV_SEND_SIGNALED) || finish(e, 1, IBV_WC_SUCCESS) ||
	    post(e, 2, IBV_WR_RDMA_WRITE, slot(e, 0), p->size, 0, IBV_SEND_SIGNALED) || finish(e, 2, IBV_WC_REM_ACCESS_ERR))
		return -1;
	e->peer.rkey = region;
	return 0;
}

/* Writes through a memory window, and under the key that it had before. */
static int request_window(struct end *e)
{
	const struct plan *p = &e->plan;
	uint32_t region = e->peer.rkey, now = e->peer.window_rkey;
	CHECK(now, "the peer has no memory window");
	e->peer.rkey = now;
	if (post(e, 0, IBV_WR_RDMA_WRITE, slot(e, 0), p->size, 0, IBV_SEND_SIGNALED) || finish(e, 0, IBV_WC_SUCCESS))
		return -1;
	e->peer.rkey = (now & ~0xffu) | ((now - 1) & 0xff);
	if (post(e, 1, IBV_WR_RDMA_WRITE, slot(e, 1), p->size, 0, IBV_SEND_SIGNALED) || finish(e, 1, IBV_WC_REM_ACCESS_ERR))
		return -1;
	e->peer.rkey = region;
	return 0;
}

/* One request that fails, and two behind it that are flushed. */
static int request_failing(struct end *e)
{
	const struct plan *p = &e->plan;
	enum ibv_wr_opcode opcode = strstr(p->test, "read") ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	uint64_t offset = 0;
	uint32_t good = e->peer.rkey;
	if (!strncmp(p->test, "bad-rkey-", 9))
		e->peer.rkey ^= 0x5a00;	/* no such region */
	else if (!strncmp(p->test, "bad-key-byte-", 13))
		e->peer.rkey ^= 0x5a;	/* the region, under a key that it does not have */
	else if (!strncmp(p->test, "bad-range-", 10))
		offset = e->length - p->size + 1;
	else if (is(e, "too-long") || is(e, "rnr-exhausted") || is(e, "gone"))
		opcode = IBV_WR_SEND;
	else
		CHECK(is(e, "no-mr-right") || is(e, "no-qp-right"), "no test %s", p->test);
	if (post(e, 0, opcode, slot(e, 0), p->size, offset, IBV_SEND_SIGNALED))
		return -1;
	e->peer.rkey = good;
	if (post(e, 1, IBV_WR_RDMA_WRITE, slot(e, 0), p->size, 0, 0) || post(e, 2, IBV_WR_SEND, slot(e, 0), 1, 0, IBV_SEND_SIGNALED))
		return -1;
	if (finish(e, 0, p->expect) || finish(e, 1, IBV_WC_WR_FLUSH_ERR) || finish(e, 2, IBV_WC_WR_FLUSH_ERR))
		return -1;
	CHECK(state_of(e) == IBV_QPS_ERR, "the requester's queue pair is in state %d", state_of(e));
	return 0;
}

int request(struct end *e)
{
	const struct kind *kind = kind_of(e);
	if (kind)
		return request_uniform(e, kind);
	if (is(e, "mixed"))
		return request_mixed(e);
	if (is(e, "fence"))
		return request_fence(e);
	if (is(e, "both"))
		return request_both(e);
	if (is(e, "send-inv"))
		return request_invalidate(e);
	if (is(e, "window"))
		return request_window(e);
	return request_failing(e);
}
