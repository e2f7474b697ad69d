// A program that uses a device, and then ends in a way that leaves something of it alive.

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct ibv_device;
struct ibv_context;
struct ibv_device **ibv_get_device_list(int *count);
struct ibv_context *ibv_open_device(struct ibv_device *device);

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (argc != 2 || !list || !list[0] || !ibv_open_device(list[0]))
		return 1;
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	if (!strcmp(argv[1], "exec")) {
		// The same process, as another program.
		execlp("cat", "cat", (char *)NULL);
		return 1;
	}
	switch (fork()) {
	case -1:
		return 1;
	case 0:
		// It has its parent's descriptors, and goes on until its input ends.
		while (getchar() != EOF)
			;
		puts("child");
		return 0;
	default:
		raise(SIGKILL);
		return 1;
	}
}
