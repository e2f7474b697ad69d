/*
 * Lists the extensions of the first device, and calls the one that counts what went wrong on its port.
 *
 *     cc shims/ibverbs/examples/extensions.c -I shims/ibverbs target/release/libibverbs.so -o target/extensions
 *     verbs run -- target/extensions
 *
 * Needs no header of rdma-core: the few functions of it that are used are declared here.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <verbs_extensions.h>

struct ibv_device;
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);

static const char counters[] = "hca_sim.port_counters";

int main(void)
{
	struct verbs_extension known[16];
	unsigned char bytes[48];
	size_t len = 3;
	int count, i, error;

	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context) {
		perror("no device");
		return 1;
	}
	ibv_free_device_list(list);

	count = verbs_query_extensions(context, known, 16);
	for (i = 0; i < count && i < 16; i++)
		printf("%s %u%s\n", known[i].name, known[i].version,
		       known[i].kind == VERBS_EXTENSION_WORK_REQUEST ? ", a work request" : "");

	error = verbs_call_extension(context, counters, 1, NULL, 0, bytes, &len);
	printf("room for 3 bytes: %s, %zu are needed\n", strerror(error), len);
	error = verbs_call_extension(context, counters, 1, NULL, 0, bytes, &len);
	printf("%zu bytes: %s, %u receivers were not ready\n", len, error ? strerror(error) : "success", bytes[0]);
	len = sizeof(bytes);
	error = verbs_call_extension(context, counters, 2, NULL, 0, bytes, &len);
	printf("version 2: %s\n", error == EOPNOTSUPP ? "not there" : strerror(error));
	error = verbs_call_extension(context, counters, 1, "?", 1, bytes, &len);
	printf("other input: %s\n", error == EINVAL ? "refused" : strerror(error));
	return ibv_close_device(context);
}
