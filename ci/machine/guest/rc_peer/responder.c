/* The responder's half of the tests. */
#include "rc_peer.h"
#include <poll.h>
#include <unistd.h>

static int post_all(struct end *e)
{
	const struct plan *p = &e->plan;
	const struct kind *kind = kind_of(e);
	for (uint32_t k = 0; k < p->count; k++) {
		int send = is(e, "mixed") && k % 4 == 2, imm = is(e, "mixed") && k % 4 == 3;
		int in_slot = send || is(e, "fence") || is(e, "both") || (kind && kind->sends && !is(e, "write-imm"));
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

int post_receives(struct end *e)
{
	struct ibv_srq_attr attr = { .srq_limit = e->plan.limit };
	if (post_all(e))
		return -1;
	CHECK(!e->srq || !ibv_modify_srq(e->srq, &attr, IBV_SRQ_LIMIT), "arm the limit: %m");
	return 0;
}

/* A window of type 1, by the call that has a name of its own. */
static int bind_window_1(struct end *e)
{
	CHECK(e->mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1), "alloc_mw: %m");
	struct ibv_mw_bind bind = { .wr_id = 99, .send_flags = IBV_SEND_SIGNALED, .bind_info = {
		.mr = e->mr, .addr = (uintptr_t)e->memory, .length = e->stride, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	int code = ibv_bind_mw(e->qp, e->mw, &bind);
	CHECK(!code, "bind_mw: %s", strerror(code));
	e->peer.window_rkey = e->mw->rkey;
	return finish(e, 99, IBV_WC_SUCCESS);
}

/* The window is bound before the peer hears of it. */
int bind_window(struct end *e)
{
	if (is(e, "window"))
		return bind_window_1(e);
	CHECK(e->mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2), "alloc_mw: %m");
	e->peer.window_rkey = ibv_inc_rkey(e->mw->rkey);
	struct ibv_send_wr wr = { .wr_id = 99, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = {
		.mw = e->mw, .rkey = e->peer.window_rkey,
		.bind_info = { .mr = e->mr, .addr = (uintptr_t)e->memory, .length = e->stride, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
	} }, *bad;
	CHECK(!ibv_post_send(e->qp, &wr, &bad), "post of the bind: %m");
	return finish(e, 99, IBV_WC_SUCCESS);
}

int respond(struct end *e)
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

/* The limit event has come once. */
static int check_limit(struct end *e)
{
	struct ibv_async_event event;
	struct pollfd fd = { .fd = device->async_fd, .events = POLLIN };
	int limits = 0;
	for (; poll(&fd, 1, limits ? QUIET_MS : PATIENCE_MS) == 1; ibv_ack_async_event(&event)) {
		CHECK(!ibv_get_async_event(device, &event), "get_async_event: %m");
		fprintf(stderr, "  event: %s\n", ibv_event_type_str(event.event_type));
		limits += event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == e->srq;
	}
	CHECK(limits == 1, "the limit event came %d times", limits);
	return 0;
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

int check_responder(struct end *e)
{
	const struct plan *p = &e->plan;
	const struct kind *kind = kind_of(e);
	struct ibv_wc wc;
	uint64_t counter;
	memcpy(&counter, e->memory + counter_at(e), 8);
	if (is(e, "send-inv"))
		return check_invalidated(e);
	if (is(e, "window"))
		return check_bytes(e, 0, p->size, 0);
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
	if (e->srq && check_limit(e))
		return -1;
	uint64_t want = kind && kind->atomic ? counted(kind, p->count) : is(e, "mixed") ? FIRST_COUNT + p->count / 4 * ADDEND : FIRST_COUNT;
	CHECK(counter == want, "the counter is %lx, not %lx", counter, want);
	CHECK(state_of(e) == IBV_QPS_RTS, "the responder's queue pair is in state %d", state_of(e));
	return 0;
}
