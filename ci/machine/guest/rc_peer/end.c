/* One end of a connection: its objects, its posts, the completions that it waits for. */
#include "rc_peer.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int create(struct end *e, int server)
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
	if (server && p->limit) {
		struct ibv_srq_init_attr srq = { .attr = { .max_wr = 2 * p->count + 8, .max_sge = 2 } };
		CHECK(e->srq = ibv_create_srq(e->pd, &srq), "create_srq: %m");
	}
	struct ibv_qp_init_attr init = {
		.srq = e->srq,
		.send_cq = e->send_cq, .recv_cq = e->recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2 * p->count + 8, .max_recv_wr = 2 * p->count + 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	if (!server && is(e, "atomic-write")) {
		/* Only queue pairs that were made for it post it, by a call of its own. */
		struct ibv_qp_init_attr_ex ex = {
			.send_cq = e->send_cq, .recv_cq = e->recv_cq, .qp_type = IBV_QPT_RC, .cap = init.cap, .pd = e->pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
		};
		CHECK(e->qp = ibv_create_qp_ex(device, &ex), "create_qp_ex: %m");
	} else {
		CHECK(e->qp = ibv_create_qp(e->pd, &init), "create_qp: %m");
	}
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = server && is(e, "no-qp-right") ? IBV_ACCESS_REMOTE_READ :
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	CHECK(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "modify to INIT: %m");
	e->psn = rand() & 0xffffff;
	return 0;
}

int connect_qp(struct end *e)
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

void destroy(struct end *e)
{
	/* a window that is still bound keeps rxe waiting for a minute when the queue pair goes first */
	if (e->mw)
		ibv_dealloc_mw(e->mw);
	if (e->qp)
		ibv_destroy_qp(e->qp);
	if (e->srq)
		ibv_destroy_srq(e->srq);
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

int state_of(struct end *e)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	return ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init) ? -1 : (int)attr.qp_state;
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t ms)
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

int post_recv(struct end *e, uint64_t id, uint8_t *at, uint32_t size)
{
	struct ibv_sge sge = { (uintptr_t)at, size, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = size ? 1 : 0 }, *bad;
	CHECK(!(e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad)), "post_recv %lu: %m", id);
	e->receives++;
	return 0;
}

static int post_atomic_write(struct end *e, uint64_t id, uint8_t *at, uint64_t offset, int flags)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(e->qp);
	CHECK(qp, "the queue pair has no calls of its own");
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = flags;
	ibv_wr_atomic_write(qp, e->peer.rkey, e->peer.addr + offset, at);
	int code = ibv_wr_complete(qp);
	CHECK(!code, "ATOMIC WRITE %lu: %s", id, strerror(code));
	return 0;
}

int post(struct end *e, uint64_t id, enum ibv_wr_opcode opcode, uint8_t *at, uint32_t size, uint64_t offset, int flags)
{
	if (opcode == IBV_WR_ATOMIC_WRITE)
		return post_atomic_write(e, id, at, offset, flags);
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
int finish(struct end *e, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	CHECK(poll_for(e->send_cq, &wc, PATIENCE_MS), "no completion for work request %lu", id);
	CHECK(wc.wr_id == id, "completion of work request %lu, not of %lu", wc.wr_id, id);
	CHECK(wc.status == status, "work request %lu: %s, not %s", id, ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	return 0;
}

/* Takes the next completion of the receive queue, which must be a success of that kind and size. */
int arrived(struct end *e, uint64_t id, enum ibv_wc_opcode opcode, uint32_t size, int with_imm, uint32_t imm)
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
