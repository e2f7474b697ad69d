/* What the parts of rds_peer share. */
#ifndef RDS_PEER_H
#define RDS_PEER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

enum { HEADER = 16, MESSAGE_MAX = 1 << 20, INFO_COUNTERS = 10000 };

/* Ends the program: what was being done, and why it failed. */
_Noreturn void fail(const char *what);
/* A socket's address; its length. */
socklen_t address(const char *text, unsigned port, struct sockaddr_storage *out);
/* A socket that is bound. */
int bound(const char *local, unsigned port);
/* Waits until the socket has that. */
void await(int fd, short events);
/* Memory that is lent, and memory that is borrowed; see rdma.c. */
void lend(int fd, size_t bytes);
void borrow(int fd, const char *peer, unsigned port);
/* Sends a datagram, waiting for room. */
void send_to(int fd, const void *bytes, size_t len, const struct sockaddr_storage *to, socklen_t to_len);

#endif
