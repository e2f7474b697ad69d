/*
 * rc_peer: one end of a test of a reliable connection, for a Linux RDMA device.
 *
 *     rc_peer server ADDRESS PORT
 *     rc_peer client ADDRESS HOST PORT TEST [KEY=VALUE]...
 *
 * ADDRESS is the local IP address that packets come from. The server takes one test after the other, each on a connection and a queue pair of its own. The
 * client is the requester: it posts, checks its completions and what it has read. The server is the
 * responder: it checks its completions, what has arrived in its memory, and that nothing else has. The
 * client ends with 0 when both are content. hca-sim/examples/rc_peer is the same program for the other
 * side; its comments say what the keys mean (plan.rs) and how the two talk (talk.rs).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 25000	/* for a completion that must come */
#define QUIET_MS 20		/* without one that must not come */
#define GUARD 0xa5		/* what memory is filled with that nothing may touch */
#define FIRST_COUNT 0xfffffffffffffff0ull	/* of the counter: additions wrap */
#define ADDEND 7

struct plan {
	char test[32];
	uint32_t size, count, window, signal, mtu, rd, timeout, retry, rnr_retry, rnr_timer;
	uint32_t expect, late_ms;	/* of the requester: status; of the responder: delay of its receives */
	int rexpect, rstate;		/* of the responder: status of its first receive, state at the end; -1: not looked at */
};

struct peer { uint32_t qpn, psn, rkey, window_rkey; uint64_t addr; union ibv_gid gid; };

struct end {
	struct plan plan;
	struct peer peer;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_qp *qp;
	uint8_t *memory;
	uint64_t stride, length;
	uint32_t psn, receives;
	FILE *in;
	int socket;
};

static struct ibv_context *device;
static union ibv_gid gid;
static int gid_index;
static char failure[512];

/* ---------------------------------------------------------------- what went wrong */

static int fail(const char *format, ...)
{
	va_list args;
	if (failure[0])
		return -1;	/* the first reason is the one to tell */
	va_start(args, format);
	vsnprintf(failure, sizeof failure, format, args);
	va_end(args);
	return -1;
}

#define CHECK(condition, ...) do { if (!(condition)) return fail(__VA_ARGS__); } while (0)

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static int is(const struct end *e, const char *test) { return !strcmp(e->plan.test, test); }

/* ---------------------------------------------------------------- contents of messages */

/* The eight bytes at index i of the message with that seed (splitmix64). */
static uint64_t word(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed << 32) + (i + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void fill(uint8_t *at, uint32_t size, uint64_t seed)
{
	for (uint32_t i = 0; i < size; i += 8) {
		uint64_t w = htole64(word(seed, i / 8));
		memcpy(at + i, &w, size - i < 8 ? size - i : 8);
	}
}

/* Slots: 0 to count-1 are for what goes from the requester to the responder, the next count for what
 * comes back; each has a guard behind it. The counter of atomics is behind the last. */
static uint8_t *slot(const struct end *e, uint32_t i) { return e->memory + i * e->stride; }
static uint64_t counter_at(const struct end *e) { return 2ull * e->plan.count * e->stride; }

static int check_bytes(const struct end *e, uint32_t i, uint32_t size, uint64_t seed)
{
	const uint8_t *at = slot(e, i);
	for (uint32_t k = 0; k < size; k += 8) {
		uint64_t w = htole64(word(seed, k / 8));
		if (memcmp(at + k, &w, size - k < 8 ? size - k : 8))
			return fail("slot %u differs in the 8 bytes from %u", i, k);
	}
	for (uint64_t k = size; k < e->stride; k++)
		CHECK(at[k] == GUARD, "slot %u: byte %lu, behind a message of %u, was overwritten", i, k, size);
	return 0;
}

/* ---------------------------------------------------------------- verbs objects */

static int create(struct end *e, int server)
{
	const struct plan *p = &e->plan;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	if (server && is(e, "no-mr-right"))
		access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	e->stride = (p->size + 127) / 64 * 64;
	e->length = counter_at(e) + 64;
	CHECK(!posix_memalign((void **)&e->memory, 4096, e->length), "no memory");
	memset(e->memory, GUARD, e->length);
	uint64_t first = FIRST_COUNT;
	memcpy(e->memory + counter_at(e), &first, 8);
	CHECK(e->pd = ibv_alloc_pd(device), "alloc_pd: %m");
	CHECK(e->send_cq = ibv_create_cq(device, 2 * p->count + 8, NULL, NULL, 0), "create_cq: %m");
	CHECK(e->recv_cq = ibv_create_cq(device, 2 * p->count + 8, NULL, NULL, 0), "create_cq: %m");
	CHECK(e->mr = ibv_reg_mr(e->pd, e->memory, e->length, access), "reg_mr: %m");
	struct ibv_qp_init_attr init = {
		.send_cq = e->send_cq, .recv_cq = e->recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2 * p->count + 8, .max_recv_wr = 2 * p->count + 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	CHECK(e->qp = ibv_create_qp(e->pd, &init), "create_qp: %m");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = server && is(e, "no-qp-right") ? IBV_ACCESS_REMOTE_READ :
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	CHECK(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "modify to INIT: %m");
	e->psn = rand() & 0xffffff;
	return 0;
}

static int connect_qp(struct end *e)
{
	const struct plan *p = &e->plan;
	int mtu = IBV_MTU_256;
	while (128 << mtu < (int)p->mtu)
		mtu++;
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = e->peer.qpn, .rq_psn = e->peer.psn,
		.max_dest_rd_atomic = p->rd, .min_rnr_timer = p->rnr_timer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = e->peer.gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	CHECK(!ibv_modify_qp(e->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "modify to RTR: %m");
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = p->timeout, .retry_cnt = p->retry, .rnr_retry = p->rnr_retry,
		.sq_psn = e->psn, .max_rd_atomic = p->rd,
	};
	CHECK(!ibv_modify_qp(e->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC), "modify to RTS: %m");
	return 0;
}

static void destroy(struct end *e)
{
	/* a window that is still bound keeps rxe waiting for a minute when the queue pair goes first */
	if (e->mw)
		ibv_dealloc_mw(e->mw);
	if (e->qp)
		ibv_destroy_qp(e->qp);
	if (e->mr)
		ibv_dereg_mr(e->mr);
	if (e->send_cq)
		ibv_destroy_cq(e->send_cq);
	if (e->recv_cq)
		ibv_destroy_cq(e->recv_cq);
	if (e->pd)
		ibv_dealloc_pd(e->pd);
	free(e->memory);
	if (e->in)
		fclose(e->in);
}

static int state_of(struct end *e)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	return ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init) ? -1 : (int)attr.qp_state;
}

/* 1: a completion came; 0: none in that time. */
static int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t ms)
{
	uint64_t until = now_ms() + ms;
	for (;;) {
		int n = ibv_poll_cq(cq, 1, wc);
		if (n > 0)
			fprintf(stderr, "  wc: wr %lu %s, opcode %d, %u bytes, flags %x\n", wc->wr_id,
				ibv_wc_status_str(wc->status), wc->opcode, wc->byte_len, wc->wc_flags);
		if (n)
			return n > 0;
		if (now_ms() > until)
			return 0;
		usleep(50);
	}
}

/* ---------------------------------------------------------------- posting */

static int post_recv(struct end *e, uint64_t id, uint8_t *at, uint32_t size)
{
	struct ibv_sge sge = { (uintptr_t)at, size, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = size ? 1 : 0 }, *bad;
	CHECK(!ibv_post_recv(e->qp, &wr, &bad), "post_recv %lu: %m", id);
	e->receives++;
	return 0;
}

static int post(struct end *e, uint64_t id, enum ibv_wr_opcode opcode, uint8_t *at, uint32_t size, uint64_t offset, int flags)
{
	struct ibv_sge sge = { (uintptr_t)at, size, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = size ? 1 : 0, .opcode = opcode, .send_flags = flags }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = e->peer.addr + offset;
		wr.wr.atomic.rkey = e->peer.rkey;
		/* every other compare misses */
		wr.wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? ADDEND : FIRST_COUNT + id / 2 + (id & 1) * 1000;
		wr.wr.atomic.swap = FIRST_COUNT + id / 2 + 1;
	} else {
		wr.wr.rdma.remote_addr = e->peer.addr + offset;
		wr.wr.rdma.rkey = e->peer.rkey;
	}
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = e->peer.window_rkey;
	if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htonl(0x12340000 + id);
	CHECK(!ibv_post_send(e->qp, &wr, &bad), "post_send %lu: %m", id);
	return 0;
}

/* Takes the next completion of the send queue, which must be of that work request, with that status. */
static int finish(struct end *e, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	CHECK(poll_for(e->send_cq, &wc, PATIENCE_MS), "no completion for work request %lu", id);
	CHECK(wc.wr_id == id, "completion of work request %lu, not of %lu", wc.wr_id, id);
	CHECK(wc.status == status, "work request %lu: %s, not %s", id, ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	return 0;
}

/* Takes the next completion of the receive queue, which must be a success of that kind and size. */
static int arrived(struct end *e, uint64_t id, enum ibv_wc_opcode opcode, uint32_t size, int with_imm, uint32_t imm)
{
	struct ibv_wc wc;
	CHECK(poll_for(e->recv_cq, &wc, PATIENCE_MS), "no completion for receive %lu", id);
	CHECK(wc.wr_id == id, "completion of receive %lu, not of %lu", wc.wr_id, id);
	CHECK(wc.status == IBV_WC_SUCCESS, "receive %lu: %s", id, ibv_wc_status_str(wc.status));
	CHECK(wc.opcode == opcode, "receive %lu: opcode %d, not %d", id, wc.opcode, opcode);
	CHECK(wc.byte_len == size, "receive %lu: %u bytes, not %u", id, wc.byte_len, size);
	CHECK(!with_imm == !(wc.wc_flags & IBV_WC_WITH_IMM), "receive %lu: immediate data %s", id, with_imm ? "missing" : "unexpected");
	CHECK(!with_imm || ntohl(wc.imm_data) == imm, "receive %lu: immediate %08x, not %08x", id, ntohl(wc.imm_data), imm);
	return 0;
}

/* ---------------------------------------------------------------- the requester's tests */

struct kind { const char *test; enum ibv_wr_opcode opcode; int sends, lands, fetches, atomic; };

/* Tests that post COUNT requests of one kind. sends: a receive is used up; lands: the message is in its
 * slot at the responder; fetches: bytes come back. */
static const struct kind kinds[] = {
	{ "send", IBV_WR_SEND, 1, 1, 0, 0 },
	{ "send-imm", IBV_WR_SEND_WITH_IMM, 1, 1, 0, 0 },
	{ "write", IBV_WR_RDMA_WRITE, 0, 1, 0, 0 },
	{ "write-imm", IBV_WR_RDMA_WRITE_WITH_IMM, 1, 1, 0, 0 },
	{ "read", IBV_WR_RDMA_READ, 0, 0, 1, 0 },
	{ "faa", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 0, 1 },
	{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP, 0, 0, 0, 1 },
};

static const struct kind *kind_of(const struct end *e)
{
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (is(e, kinds[i].test))
			return kinds + i;
	return NULL;
}

/* What the counter holds before request k. */
static uint64_t counted(const struct kind *kind, uint64_t k)
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

static int request(struct end *e)
{
	const struct kind *kind = kind_of(e);
	if (is(e, "rnr"))
		kind = kinds;
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
	return request_failing(e);
}

/* ---------------------------------------------------------------- the responder's side of them */

static int post_receives(struct end *e)
{
	const struct plan *p = &e->plan;
	const struct kind *kind = kind_of(e);
	for (uint32_t k = 0; k < p->count; k++) {
		int send = is(e, "mixed") && k % 4 == 2, imm = is(e, "mixed") && k % 4 == 3;
		int in_slot = send || is(e, "fence") || is(e, "both") || is(e, "rnr") || (kind && kind->sends && !is(e, "write-imm"));
		if (in_slot || imm || is(e, "write-imm")) {
			/* two bytes more than the message, which must stay as they are */
			if (post_recv(e, k, slot(e, k), in_slot ? p->size + 2 : 0))
				return -1;
		}
	}
	if (is(e, "send-inv"))
		return post_recv(e, 1, slot(e, 1), p->size);
	if (is(e, "too-long"))
		return post_recv(e, 0, slot(e, 0), p->size - 1) || post_recv(e, 1, slot(e, 0), p->size) ? -1 : 0;
	if (!strncmp(p->test, "bad-", 4) || !strncmp(p->test, "no-", 3))
		return post_recv(e, 0, slot(e, 0), p->size) || post_recv(e, 1, slot(e, 0), p->size) ? -1 : 0;
	return 0;
}

/* The window is bound before the peer hears of it. */
static int bind_window(struct end *e)
{
	CHECK(e->mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2), "alloc_mw: %m");
	e->peer.window_rkey = ibv_inc_rkey(e->mw->rkey);
	struct ibv_send_wr wr = { .wr_id = 99, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = {
		.mw = e->mw, .rkey = e->peer.window_rkey,
		.bind_info = { .mr = e->mr, .addr = (uintptr_t)e->memory, .length = e->stride, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
	} }, *bad;
	CHECK(!ibv_post_send(e->qp, &wr, &bad), "post of the bind: %m");
	return finish(e, 99, IBV_WC_SUCCESS);
}

static int respond(struct end *e)
{
	const struct plan *p = &e->plan;
	if (is(e, "both"))
		for (uint32_t k = 0; k < p->count; k++)
			if (post(e, k, IBV_WR_SEND, slot(e, p->count + k), p->size, 0, IBV_SEND_SIGNALED))
				return -1;
	if (p->late_ms) {
		usleep(p->late_ms * 1000);
		return post_receives(e);
	}
	return 0;
}

static int check_invalidated(struct end *e)
{
	struct ibv_wc wc;
	CHECK(poll_for(e->recv_cq, &wc, PATIENCE_MS) && !wc.status, "the SEND with Invalidate did not arrive");
	/* rxe of Linux 6.1 hands out the kernel's own value of the flag, 4 instead of 8 */
	CHECK(wc.wc_flags & (IBV_WC_WITH_INV | 4), "no invalidated key");
	CHECK(wc.invalidated_rkey == e->peer.window_rkey, "invalidated key %08x, not %08x", wc.invalidated_rkey, e->peer.window_rkey);
	return check_bytes(e, 0, e->plan.size, 0) || check_bytes(e, 1, e->plan.size, 1) ? -1 : 0;
}

/* After a failed request: the first receive, the ones behind it, the state, and untouched memory. */
static int check_failed(struct end *e)
{
	const struct plan *p = &e->plan;
	struct ibv_wc wc;
	for (uint32_t k = 0; p->rexpect >= 0 && k < e->receives; k++) {
		int status = k ? IBV_WC_WR_FLUSH_ERR : p->rexpect;
		CHECK(poll_for(e->recv_cq, &wc, PATIENCE_MS), "no completion for receive %u", k);
		CHECK((int)wc.wr_id == (int)k && (int)wc.status == status, "receive %lu: %s, not %s", wc.wr_id,
		      ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	}
	CHECK(!poll_for(e->recv_cq, &wc, QUIET_MS), "a completion too many");
	if (p->rstate >= 0)
		CHECK(state_of(e) == p->rstate, "the responder's queue pair is in state %d, not %d", state_of(e), p->rstate);
	if (!is(e, "too-long"))
		for (uint64_t k = 0; k < p->count * e->stride; k++)
			CHECK(e->memory[k] == GUARD, "byte %lu was overwritten", k);
	return 0;
}

static int check_responder(struct end *e)
{
	const struct plan *p = &e->plan;
	const struct kind *kind = is(e, "rnr") ? kinds : kind_of(e);
	struct ibv_wc wc;
	uint64_t counter;
	memcpy(&counter, e->memory + counter_at(e), 8);
	if (is(e, "send-inv"))
		return check_invalidated(e);
	if (!kind && !is(e, "mixed") && !is(e, "fence") && !is(e, "both"))
		return check_failed(e);
	for (uint32_t k = 0; k < p->count; k++) {
		int send = is(e, "mixed") && k % 4 == 2, written = is(e, "mixed") && k % 4 == 3;
		int imm = send || written || is(e, "send-imm") || is(e, "write-imm");
		if ((kind && kind->sends) || send || written || is(e, "fence") || is(e, "both"))
			if (arrived(e, k, is(e, "write-imm") || written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, p->size, imm, 0x12340000 + k))
				return -1;
		if ((kind && kind->lands) || is(e, "both") || (is(e, "mixed") && k % 4 != 1))
			if (check_bytes(e, k, p->size, k))
				return -1;
		if (is(e, "fence") && check_bytes(e, k, p->size, 1000 + k))
			return -1;
		if (is(e, "both") && finish(e, k, IBV_WC_SUCCESS))
			return -1;
		if (check_bytes(e, p->count + k, p->size, 1000 + k))	/* what was read from is as it was */
			return -1;
	}
	CHECK(!poll_for(e->recv_cq, &wc, QUIET_MS), "a completion too many");
	uint64_t want = kind && kind->atomic ? counted(kind, p->count) : is(e, "mixed") ? FIRST_COUNT + p->count / 4 * ADDEND : FIRST_COUNT;
	CHECK(counter == want, "the counter is %lx, not %lx", counter, want);
	CHECK(state_of(e) == IBV_QPS_RTS, "the responder's queue pair is in state %d", state_of(e));
	return 0;
}

/* ---------------------------------------------------------------- lines of text */

static int say(struct end *e, const char *format, ...)
{
	char line[1024];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	CHECK(send(e->socket, line, n, MSG_NOSIGNAL) == n, "the peer has closed the connection");
	return 0;
}

static int hear(struct end *e, char *line, int room)
{
	CHECK(fgets(line, room, e->in), "the peer has closed the connection");
	line[strcspn(line, "\n")] = 0;
	return 0;
}

static int say_end(struct end *e, const char *word)
{
	char text[33];
	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", gid.raw[i]);
	return say(e, "%s qpn=%u psn=%u gid=%s addr=%lu rkey=%u mw=%u", word, e->qp->qp_num, e->psn, text,
		   (uintptr_t)e->memory, e->mr->rkey, e->peer.window_rkey);
}

static void set(struct end *e, const char *key, const char *value)
{
	struct plan *p = &e->plan;
	struct { const char *key; uint32_t *at; } numbers[] = {
		{ "size", &p->size }, { "count", &p->count }, { "window", &p->window }, { "signal", &p->signal }, { "mtu", &p->mtu },
		{ "rd", &p->rd }, { "timeout", &p->timeout }, { "retry", &p->retry }, { "rnr-retry", &p->rnr_retry },
		{ "rnr-timer", &p->rnr_timer }, { "expect", &p->expect }, { "late", &p->late_ms }, { "rexpect", (uint32_t *)&p->rexpect },
		{ "rstate", (uint32_t *)&p->rstate }, { "qpn", &e->peer.qpn }, { "psn", &e->peer.psn }, { "rkey", &e->peer.rkey },
		{ "mw", &e->peer.window_rkey },
	};
	for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!strcmp(key, numbers[i].key))
			*numbers[i].at = strtol(value, NULL, 10);
	if (!strcmp(key, "addr"))
		e->peer.addr = strtoull(value, NULL, 10);
	if (!strcmp(key, "test"))
		snprintf(p->test, sizeof p->test, "%s", value);
	if (!strcmp(key, "gid"))
		for (int i = 0; i < 16; i++)
			sscanf(value + 2 * i, "%2hhx", &e->peer.gid.raw[i]);
}

static void set_all(struct end *e, char *words)
{
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
		char *value = strchr(word, '=');
		if (value) {
			*value = 0;
			set(e, word, value + 1);
		}
	}
}

static const struct plan defaults = {
	.test = "send", .size = 64, .count = 4, .window = 128, .signal = 1, .mtu = 1024, .rd = 16, .timeout = 17, .retry = 7,
	.rnr_retry = 7, .rnr_timer = 12, .rexpect = -1, .rstate = -1,
};

static int check_plan(struct plan *p)
{
	CHECK(p->count >= 1 && p->count <= 128 && p->size <= 16 << 20, "count %u or size %u is out of bounds", p->count, p->size);
	CHECK(p->window && p->signal, "window and signal are 1 at least");
	if (p->signal > p->window)
		p->signal = p->window;
	return 0;
}

/* ---------------------------------------------------------------- client and server */

static int client_test(struct end *e, char **keys, int n)
{
	char line[1024] = "";
	for (int i = 0; i < n; i++)
		snprintf(line + strlen(line), sizeof line - strlen(line), "%s ", keys[i]);
	char copy[1024];
	strcpy(copy, line);
	set_all(e, copy);
	if (check_plan(&e->plan) || create(e, 0))
		return -1;
	for (uint32_t k = 0; k < e->plan.count; k++)
		fill(slot(e, k), e->plan.size, k);
	if (is(e, "both"))
		for (uint32_t k = 0; k < e->plan.count; k++)
			if (post_recv(e, k, slot(e, e->plan.count + k), e->plan.size))
				return -1;
	char word[1100];
	snprintf(word, sizeof word, "test test=%s %s", e->plan.test, line);
	if (say_end(e, word) || hear(e, line, sizeof line))
		return -1;
	CHECK(!strncmp(line, "ready ", 6), "the peer: %s", line);
	set_all(e, line);
	if (connect_qp(e) || say(e, "go") || hear(e, line, sizeof line))
		return -1;
	CHECK(!strcmp(line, "go"), "the peer: %s", line);
	if (request(e)) {
		if (!say(e, "failed") && !hear(e, line, sizeof line))
			fprintf(stderr, "  the peer: %s\n", line);
		return -1;
	}
	if (say(e, "done") || hear(e, line, sizeof line))
		return -1;
	CHECK(!strcmp(line, "ok"), "the peer: %s", line);
	return 0;
}

static int server_test(struct end *e)
{
	char line[1024];
	if (hear(e, line, sizeof line))
		return -1;
	fprintf(stderr, "%s\n", line);
	set_all(e, line);
	if (check_plan(&e->plan) || create(e, 1))
		return -1;
	for (uint32_t k = 0; k < e->plan.count; k++)
		fill(slot(e, e->plan.count + k), e->plan.size, 1000 + k);
	if (!e->plan.late_ms && post_receives(e))
		return -1;
	if (connect_qp(e) || (is(e, "send-inv") && bind_window(e)) || say_end(e, "ready") || hear(e, line, sizeof line))
		return -1;
	if (is(e, "gone")) {
		ibv_destroy_qp(e->qp);
		e->qp = NULL;
	}
	if (say(e, "go") || respond(e) || hear(e, line, sizeof line))
		return -1;
	CHECK(!strcmp(line, "done"), "the requester has failed");
	if (e->qp && check_responder(e))
		return -1;
	return say(e, "ok");
}

/* Opens the device that has the address, an IPv4 address in its mapped form, among its GIDs. */
static int open_device(const char *address)
{
	struct in_addr v4;
	char mapped[64];
	snprintf(mapped, sizeof mapped, "%s%s", inet_pton(AF_INET, address, &v4) == 1 ? "::ffff:" : "", address);
	CHECK(inet_pton(AF_INET6, mapped, gid.raw) == 1, "%s is no IP address", address);
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (struct ibv_device **d = list; d && *d; d++) {
		CHECK(device = ibv_open_device(*d), "open_device: %m");
		union ibv_gid entry;
		for (gid_index = 0; !ibv_query_gid(device, 1, gid_index, &entry); gid_index++)
			if (!memcmp(&entry, &gid, sizeof gid))
				return 0;
		ibv_close_device(device);
	}
	return fail("no RDMA device has the address %s", address);
}

static int serve(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	CHECK(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 8), "port %d: %m", port);
	for (;;) {
		struct end e = { .plan = defaults, .socket = accept(listener, NULL, NULL) };
		CHECK(e.socket >= 0, "accept: %m");
		setsockopt(e.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		e.in = fdopen(e.socket, "r");
		failure[0] = 0;
		if (server_test(&e)) {
			char reason[sizeof failure];
			strcpy(reason, failure);
			say(&e, "failed: %s", reason);
			fprintf(stderr, "  FAILED: %s\n", reason);
		}
		destroy(&e);
	}
}

static int ask(const char *host, int port, char **words, int n)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct end e = { .plan = defaults, .socket = socket(AF_INET, SOCK_STREAM, 0) };
	int one = 1;
	CHECK(inet_pton(AF_INET, host, &to.sin_addr) == 1, "%s is no IPv4 address", host);
	CHECK(!connect(e.socket, (struct sockaddr *)&to, sizeof to), "%s port %d: %m", host, port);
	setsockopt(e.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	e.in = fdopen(e.socket, "r");
	snprintf(e.plan.test, sizeof e.plan.test, "%s", words[0]);
	int code = client_test(&e, words + 1, n - 1);
	destroy(&e);
	return code;
}

int main(int n, char **v)
{
	int code = -1;
	setvbuf(stderr, NULL, _IOLBF, 0);
	srand(time(NULL) ^ getpid());
	if (n == 4 && !strcmp(v[1], "server"))
		code = open_device(v[2]) || serve(atoi(v[3]));
	else if (n >= 6 && !strcmp(v[1], "client"))
		code = open_device(v[2]) || ask(v[3], atoi(v[4]), v + 5, n - 5);
	else
		fail("usage: rc_peer server ADDRESS PORT | client ADDRESS HOST PORT TEST [KEY=VALUE]...");
	if (code)
		fprintf(stderr, "rc_peer: %s\n", failure);
	return code ? 1 : 0;
}
