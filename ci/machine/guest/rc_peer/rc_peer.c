/*
 * rc_peer: one end of a test of a reliable connection, for a Linux RDMA device.
 *
 *     rc_peer server ADDRESS PORT
 *     rc_peer client ADDRESS HOST PORT TEST [KEY=VALUE]...
 *
 * ADDRESS is the local IP address that packets come from. The server takes one test after the other,
 * each on a connection and a queue pair of its own. The client is the requester: it posts, checks its
 * completions and what it has read. The server is the responder: it checks its completions, what has
 * arrived in its memory, and that nothing else has. The client ends with 0 when both are content.
 *
 * hca-sim/examples/rc_peer is the same program for the other side, part by part.
 */
#include "rc_peer.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct ibv_context *device;
union ibv_gid gid;
int gid_index;
char failure[512];

int fail(const char *format, ...)
{
	va_list args;
	if (failure[0])
		return -1;	/* the first reason is the one to tell */
	va_start(args, format);
	vsnprintf(failure, sizeof failure, format, args);
	va_end(args);
	return -1;
}

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
	if (connect_qp(e) || ((is(e, "send-inv") || is(e, "window")) && bind_window(e)) || say_end(e, "ready") || hear(e, line, sizeof line))
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
