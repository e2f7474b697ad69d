/*
 * RDS sockets of the kernel, as one end of the tests of `verbs rds`.
 *
 *   rds_peer answer LOCAL PORT                             answers requests until it is ended
 *   rds_peer ask LOCAL PEER PORT COUNT REQUEST ANSWER DEPTH  sends requests, and checks what comes back
 *   rds_peer flood LOCAL PEER PORT COUNT REQUEST           sends requests as they are taken, and waits for one answer
 *   rds_peer stall LOCAL PORT SECONDS COUNT                reads nothing for some time, then so many requests; answers the last
 *   rds_peer lend LOCAL PORT BYTES                         lends memory to whoever asks first; see rdma.c
 *   rds_peer borrow LOCAL PEER PORT                        reads and writes memory that the peer lends
 *   rds_peer counters LOCAL                                prints those of the kernel's RDS that are not 0
 *   rds_peer ping LOCAL PEER COUNT                         pings: the peer's RDS answers
 *
 * Messages are those of `verbs rds stress`: "RDSq" or "RDSa", the bytes of the answer, the number (64 bits), then a
 * pattern; numbers are big-endian.
 */
#include "rds_peer.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long a datagram may take. */
enum { PATIENCE_MS = 30000 };

void fail(const char *what)
{
	fprintf(stderr, "rds_peer: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
	exit(1);
}

socklen_t address(const char *text, unsigned port, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof *out);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		return sizeof *v4;
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) != 1)
		fail(text);
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	return sizeof *v6;
}

int bound(const char *local, unsigned port)
{
	struct sockaddr_storage at;
	socklen_t len = address(local, port, &at);
	int fd = socket(AF_RDS, SOCK_SEQPACKET, 0), room = 4 << 20;

	if (fd < 0)
		fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	if (bind(fd, (struct sockaddr *)&at, len))
		fail("bind");
	return fd;
}

void await(int fd, short events)
{
	struct pollfd wait = { .fd = fd, .events = events };

	errno = 0;
	if (poll(&wait, 1, PATIENCE_MS) != 1)
		fail("nothing comes");
}

static unsigned char pattern(uint64_t number, uint64_t at)
{
	return (number * 31 + at) % 251;
}

static void put(unsigned char *message, size_t len, const char *kind, uint32_t answer, uint64_t number)
{
	uint32_t answer_be = htobe32(answer);
	uint64_t number_be = htobe64(number);

	memcpy(message, kind, 4);
	memcpy(message + 4, &answer_be, 4);
	memcpy(message + 8, &number_be, 8);
	for (size_t at = HEADER; at < len; at++)
		message[at] = pattern(number, at - HEADER);
}

static uint64_t check(const unsigned char *message, size_t len, const char *kind, uint32_t *answer)
{
	uint32_t answer_be;
	uint64_t number_be, number;

	errno = 0;
	if (len < HEADER || memcmp(message, kind, 4))
		fail("a message of another kind");
	memcpy(&answer_be, message + 4, 4);
	memcpy(&number_be, message + 8, 8);
	*answer = be32toh(answer_be);
	number = be64toh(number_be);
	for (size_t at = HEADER; at < len; at++)
		if (message[at] != pattern(number, at - HEADER))
			fail("a message that is damaged");
	return number;
}

void send_to(int fd, const void *bytes, size_t len, const struct sockaddr_storage *to, socklen_t to_len)
{
	while (sendto(fd, bytes, len, MSG_DONTWAIT, (const struct sockaddr *)to, to_len) < 0) {
		if (errno != EAGAIN && errno != ENOBUFS)
			fail("sendto");
		/* A congested port is not told by POLLOUT. */
		struct pollfd wait = { .fd = fd, .events = POLLOUT };
		poll(&wait, 1, errno == ENOBUFS ? 0 : 100);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

static void answer_all(int fd)
{
	static unsigned char bytes[MESSAGE_MAX], out[MESSAGE_MAX];

	for (;;) {
		struct sockaddr_storage from;
		socklen_t from_len = sizeof from;
		uint32_t answer;
		ssize_t len = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &from_len);
		uint64_t number;

		if (len < 0)
			fail("recvfrom");
		number = check(bytes, len, "RDSq", &answer);
		put(out, answer, "RDSa", answer, number);
		send_to(fd, out, answer, &from, from_len);
	}
}

static void ask(int fd, const char *peer, unsigned port, uint64_t count, size_t request, size_t answer, uint64_t depth)
{
	static unsigned char bytes[MESSAGE_MAX];
	struct sockaddr_storage to;
	socklen_t to_len = address(peer, port, &to);
	uint64_t sent = 0, answered = 0;

	while (answered < count) {
		uint32_t said;
		ssize_t len;

		while (sent < count && sent - answered < depth) {
			put(bytes, request, "RDSq", answer, sent++);
			send_to(fd, bytes, request, &to, to_len);
		}
		await(fd, POLLIN);
		len = recv(fd, bytes, sizeof bytes, 0);
		if (len < 0)
			fail("recv");
		errno = 0;
		if ((size_t)len != answer)
			fail("an answer of another length");
		if (check(bytes, len, "RDSa", &said) != answered++)
			fail("an answer out of order");
	}
	printf("%llu answers\n", (unsigned long long)answered);
}

static void flood(int fd, const char *peer, unsigned port, uint64_t count, size_t request)
{
	static unsigned char bytes[MESSAGE_MAX];
	struct sockaddr_storage to;
	socklen_t to_len = address(peer, port, &to);
	uint64_t congested = 0;
	uint32_t said;
	ssize_t len;

	for (uint64_t n = 0; n < count; n++) {
		put(bytes, request, "RDSq", HEADER, n);
		while (sendto(fd, bytes, request, MSG_DONTWAIT, (struct sockaddr *)&to, to_len) < 0) {
			if (errno != EAGAIN && errno != ENOBUFS)
				fail("sendto");
			congested += errno == ENOBUFS;
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		}
	}
	await(fd, POLLIN);
	len = recv(fd, bytes, sizeof bytes, 0);
	if (len < 0)
		fail("recv");
	errno = 0;
	if (check(bytes, len, "RDSa", &said) != count - 1)
		fail("the answer to another request");
	printf("%llu requests, %s\n", (unsigned long long)count, congested ? "held back" : "never congested");
}

static void stall(int fd, unsigned seconds, uint64_t count)
{
	static unsigned char bytes[MESSAGE_MAX];
	struct sockaddr_storage from;
	socklen_t from_len = sizeof from;

	sleep(seconds);
	for (uint64_t n = 0; n < count; n++) {
		uint32_t answer;
		ssize_t len;

		await(fd, POLLIN);
		from_len = sizeof from;
		len = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &from_len);
		if (len < 0)
			fail("recvfrom");
		errno = 0;
		if (check(bytes, len, "RDSq", &answer) != n)
			fail("a request out of order");
	}
	put(bytes, HEADER, "RDSa", HEADER, count - 1);
	send_to(fd, bytes, HEADER, &from, from_len);
	printf("%llu requests read\n", (unsigned long long)count);
	/* What a socket that is closed has not sent is not sent. */
	sleep(2);
}

static void ping(int fd, const char *peer, uint64_t count)
{
	struct sockaddr_storage to, from;
	socklen_t to_len = address(peer, 0, &to);

	for (uint64_t n = 0; n < count; n++) {
		socklen_t from_len = sizeof from;
		char byte;

		send_to(fd, NULL, 0, &to, to_len);
		await(fd, POLLIN);
		if (recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &from_len) != 0)
			fail("a ping's answer");
	}
	printf("%llu pings answered\n", (unsigned long long)count);
}

static void counters(int fd)
{
	static struct {
		char name[32];
		uint64_t value;
	} all[256];
	socklen_t len = sizeof all;
	int size = getsockopt(fd, SOL_RDS, INFO_COUNTERS, all, &len);

	if (size < 0)
		fail("counters");
	for (size_t n = 0; n < len / sizeof *all; n++)
		if (all[n].value)
			printf("%s %llu\n", all[n].name, (unsigned long long)all[n].value);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	errno = EINVAL;
	if (argc == 4 && !strcmp(argv[1], "answer"))
		answer_all(bound(argv[2], atoi(argv[3])));
	else if (argc == 9 && !strcmp(argv[1], "ask"))
		ask(bound(argv[2], 0), argv[3], atoi(argv[4]), strtoull(argv[5], NULL, 10), strtoul(argv[6], NULL, 10),
		    strtoul(argv[7], NULL, 10), strtoull(argv[8], NULL, 10));
	else if (argc == 7 && !strcmp(argv[1], "flood"))
		flood(bound(argv[2], 0), argv[3], atoi(argv[4]), strtoull(argv[5], NULL, 10), strtoul(argv[6], NULL, 10));
	else if (argc == 6 && !strcmp(argv[1], "stall"))
		stall(bound(argv[2], atoi(argv[3])), atoi(argv[4]), strtoull(argv[5], NULL, 10));
	else if (argc == 5 && !strcmp(argv[1], "ping"))
		ping(bound(argv[2], 0), argv[3], strtoull(argv[4], NULL, 10));
	else if (argc == 5 && !strcmp(argv[1], "lend"))
		lend(bound(argv[2], atoi(argv[3])), strtoul(argv[4], NULL, 10));
	else if (argc == 5 && !strcmp(argv[1], "borrow"))
		borrow(bound(argv[2], 0), argv[3], atoi(argv[4]));
	else if (argc == 3 && !strcmp(argv[1], "counters"))
		counters(bound(argv[2], 0));
	else
		fail("arguments");
	return 0;
}
