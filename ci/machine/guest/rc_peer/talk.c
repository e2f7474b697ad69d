/* Lines of text over TCP, by which the two ends of a test find each other and agree; talk.rs shows them. */
#include "rc_peer.h"
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>

int say(struct end *e, const char *format, ...)
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

int hear(struct end *e, char *line, int room)
{
	CHECK(fgets(line, room, e->in), "the peer has closed the connection");
	line[strcspn(line, "\n")] = 0;
	return 0;
}

int say_end(struct end *e, const char *word)
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
		{ "rnr-timer", &p->rnr_timer }, { "expect", &p->expect }, { "late", &p->late_ms }, { "limit", &p->limit }, { "rexpect", (uint32_t *)&p->rexpect },
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

void set_all(struct end *e, char *words)
{
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
		char *value = strchr(word, '=');
		if (value) {
			*value = 0;
			set(e, word, value + 1);
		}
	}
}

const struct plan defaults = {
	.test = "send", .size = 64, .count = 4, .window = 128, .signal = 1, .mtu = 1024, .rd = 16, .timeout = 17, .retry = 7,
	.rnr_retry = 7, .rnr_timer = 12, .rexpect = -1, .rstate = -1,
};

int check_plan(struct plan *p)
{
	CHECK(p->count >= 1 && p->count <= 128 && p->size <= 16 << 20, "count %u or size %u is out of bounds", p->count, p->size);
	CHECK(p->window && p->signal, "window and signal are 1 at least");
	if (p->signal > p->window)
		p->signal = p->window;
	return 0;
}
