/*
 * Memory that is lent with a cookie, and memory of a peer that is read and written.
 *
 * The borrower sends "lend"; the lender answers with the number of bytes (64 bits, big-endian) and a cookie. The borrower
 * reads all of it, checks it, and writes all of it with every bit inverted, before a datagram "done"; the lender checks
 * that.
 */
#include "rds_peer.h"

#include <endian.h>
#include <errno.h>
#include <linux/rds.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKEN = 77 };

static unsigned char first(size_t at)
{
	return at % 251;
}

static void check(const unsigned char *bytes, size_t len, unsigned char inverted)
{
	errno = 0;
	for (size_t at = 0; at < len; at++)
		if (bytes[at] != (unsigned char)(first(at) ^ inverted)) {
			fprintf(stderr, "byte %zu is %02x\n", at, bytes[at]);
			fail("memory with other content");
		}
}

static unsigned char *room(size_t len)
{
	unsigned char *bytes = aligned_alloc(4096, (len + 4095) & ~(size_t)4095);

	if (!bytes)
		fail("memory");
	return bytes;
}

/* Sends a datagram with a control message. */
static void send_with(int fd, const void *payload, size_t len, const struct sockaddr_storage *to, socklen_t to_len, int type,
		      const void *control, size_t control_len)
{
	char space[CMSG_SPACE(sizeof(struct rds_atomic_args) + 64)] = { 0 };
	struct iovec part = { (void *)payload, len };
	struct msghdr message = { .msg_name = (void *)to, .msg_namelen = to_len, .msg_iov = &part, .msg_iovlen = 1,
				  .msg_control = space, .msg_controllen = CMSG_SPACE(control_len) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_RDS;
	head->cmsg_type = type;
	head->cmsg_len = CMSG_LEN(control_len);
	memcpy(CMSG_DATA(head), control, control_len);
	/* Memory cannot be mapped as long as the connection is being made, which the kernel notices after its first datagram. */
	for (int tries = 0; sendmsg(fd, &message, 0) != (ssize_t)len; tries++) {
		if (errno != EAGAIN || tries == 100)
			fail("sendmsg");
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	}
}

/* Receives a datagram, and the control message of that type into `control`; whether there was one. */
static int receive_with(int fd, void *payload, ssize_t *len, struct sockaddr_storage *from, socklen_t *from_len, int type,
			void *control, size_t control_len)
{
	char space[256];
	struct iovec part = { payload, *len };
	struct msghdr message = { .msg_name = from, .msg_namelen = sizeof *from, .msg_iov = &part, .msg_iovlen = 1,
				  .msg_control = space, .msg_controllen = sizeof space };

	*len = recvmsg(fd, &message, 0);
	if (*len < 0)
		fail("recvmsg");
	*from_len = message.msg_namelen;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
		if (head->cmsg_level == SOL_RDS && head->cmsg_type == type) {
			memcpy(control, CMSG_DATA(head), control_len);
			return 1;
		}
	return 0;
}

void lend(int fd, size_t bytes)
{
	unsigned char *memory = room(bytes), said[64];
	struct sockaddr_storage from;
	socklen_t from_len = sizeof from;
	uint64_t cookie = 0, len_be = htobe64(bytes), other;
	ssize_t len = sizeof said;
	struct rds_get_mr_args map = { .vec = { (uintptr_t)memory, bytes }, .cookie_addr = (uintptr_t)&cookie,
				       .flags = RDS_RDMA_READWRITE };

	for (size_t at = 0; at < bytes; at++)
		memory[at] = first(at);
	await(fd, POLLIN);
	receive_with(fd, said, &len, &from, &from_len, RDS_CMSG_RDMA_DEST, &other, sizeof other);
	/* The kernel maps by the connection of the message: a socket that has sent nothing has none for RDS_GET_MR. */
	send_with(fd, &len_be, sizeof len_be, &from, from_len, RDS_CMSG_RDMA_MAP, &map, sizeof map);
	for (int n = 0; n < 2; n++) {
		await(fd, POLLIN);
		len = sizeof said;
		receive_with(fd, said, &len, &from, &from_len, RDS_CMSG_RDMA_DEST, &other, sizeof other);
		errno = 0;
		if (len != 4 || memcmp(said, n ? "done" : "read", 4))
			fail("another datagram than was due");
	}
	check(memory, bytes, 0xff);
	printf("lent %zu bytes\n", bytes);
}

/* Carries an operation out before a datagram, and waits for its end. */
static void operate(int fd, const char *payload, const struct sockaddr_storage *to, socklen_t to_len, uint64_t cookie,
		    unsigned char *memory, size_t bytes, uint64_t flags)
{
	struct rds_iovec local = { (uintptr_t)memory, bytes };
	struct rds_rdma_args args = { .cookie = cookie, .remote_vec = { 0, bytes }, .local_vec_addr = (uintptr_t)&local,
				      .nr_local = 1, .flags = flags | RDS_RDMA_NOTIFY_ME, .user_token = TOKEN };
	struct rds_rdma_notify end = { 0 };
	struct sockaddr_storage from;
	socklen_t from_len;
	ssize_t len = 0;
	char none;

	send_with(fd, payload, strlen(payload), to, to_len, RDS_CMSG_RDMA_ARGS, &args, sizeof args);
	await(fd, POLLIN);
	errno = 0;
	if (!receive_with(fd, &none, &len, &from, &from_len, RDS_CMSG_RDMA_STATUS, &end, sizeof end))
		fail("no status");
	if (end.user_token != TOKEN || end.status != RDS_RDMA_SUCCESS) {
		fprintf(stderr, "status %d\n", end.status);
		fail("the operation");
	}
}

void borrow(int fd, const char *peer, unsigned port)
{
	struct sockaddr_storage to, from;
	socklen_t to_len = address(peer, port, &to), from_len;
	uint64_t cookie, len_be = 0, bytes;
	ssize_t len = sizeof len_be;
	unsigned char *memory;

	send_to(fd, "lend", 4, &to, to_len);
	await(fd, POLLIN);
	errno = 0;
	if (!receive_with(fd, &len_be, &len, &from, &from_len, RDS_CMSG_RDMA_DEST, &cookie, sizeof cookie) || len != 8)
		fail("no cookie");
	bytes = be64toh(len_be);
	memory = room(bytes);
	operate(fd, "read", &to, to_len, cookie, memory, bytes, RDS_RDMA_FENCE);
	check(memory, bytes, 0);
	for (size_t at = 0; at < bytes; at++)
		memory[at] ^= 0xff;
	operate(fd, "done", &to, to_len, cookie, memory, bytes, RDS_RDMA_READWRITE);
	printf("borrowed %llu bytes\n", (unsigned long long)bytes);
}
