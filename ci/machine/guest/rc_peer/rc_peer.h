/* What the parts of rc_peer share. */
#ifndef RC_PEER_H
#define RC_PEER_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PATIENCE_MS 25000	/* for a completion that must come */
#define QUIET_MS 20		/* without one that must not come */
#define GUARD 0xa5		/* what memory is filled with that nothing may touch */
#define FIRST_COUNT 0xfffffffffffffff0ull	/* of the counter: additions wrap */
#define ADDEND 7

/* The numbers of a test; plan.rs says what they mean. */
struct plan {
	char test[32];
	uint32_t size, count, window, signal, mtu, rd, timeout, retry, rnr_retry, rnr_timer;
	uint32_t expect, late_ms, limit;	/* limit: of a shared receive queue; 0 for none */
	int rexpect, rstate;	/* -1: not looked at */
};

/* What the other end says of itself. */
struct peer {
	uint32_t qpn, psn, rkey, window_rkey;
	uint64_t addr;
	union ibv_gid gid;
};

/* This end of the connection of one test. */
struct end {
	struct plan plan;
	struct peer peer;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_srq *srq;
	struct ibv_qp *qp;	/* NULL once it has been destroyed */
	uint8_t *memory;
	uint64_t stride, length;
	uint32_t psn, receives;
	FILE *in;
	int socket;
};

/* Tests that post COUNT requests of one kind. sends: a receive is used up; lands: the message is in its
 * slot at the responder; fetches: bytes come back. */
struct kind {
	const char *test;
	enum ibv_wr_opcode opcode;
	int sends, lands, fetches, atomic;
};

extern const struct plan defaults;
extern struct ibv_context *device;
extern union ibv_gid gid;
extern int gid_index;
extern char failure[512];

/* All that return an int: 0 if all is well, or -1 with the reason in failure. */
#define CHECK(condition, ...) do { if (!(condition)) return fail(__VA_ARGS__); } while (0)

/* rc_peer.c */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* talk.c */
int say(struct end *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int hear(struct end *e, char *line, int room);
int say_end(struct end *e, const char *word);
void set_all(struct end *e, char *words);
int check_plan(struct plan *p);

/* memory.c */
void fill(uint8_t *at, uint32_t size, uint64_t seed);
uint8_t *slot(const struct end *e, uint32_t i);
uint64_t counter_at(const struct end *e);
int check_bytes(const struct end *e, uint32_t i, uint32_t size, uint64_t seed);

/* end.c */
int create(struct end *e, int server);
int connect_qp(struct end *e);
void destroy(struct end *e);
int state_of(struct end *e);
int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, uint64_t ms);	/* 1: a completion came; 0: none in that time */
int post_recv(struct end *e, uint64_t id, uint8_t *at, uint32_t size);
int post(struct end *e, uint64_t id, enum ibv_wr_opcode opcode, uint8_t *at, uint32_t size, uint64_t offset, int flags);
int finish(struct end *e, uint64_t id, enum ibv_wc_status status);
int arrived(struct end *e, uint64_t id, enum ibv_wc_opcode opcode, uint32_t size, int with_imm, uint32_t imm);

/* requester.c */
const struct kind *kind_of(const struct end *e);
uint64_t counted(const struct kind *kind, uint64_t k);
int request(struct end *e);

/* responder.c */
int post_receives(struct end *e);
int bind_window(struct end *e);
int respond(struct end *e);
int check_responder(struct end *e);

static inline int is(const struct end *e, const char *test)
{
	return !strcmp(e->plan.test, test);
}

#endif
