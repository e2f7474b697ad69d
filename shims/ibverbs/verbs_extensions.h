/*
 * Extensions of a device, beyond libibverbs. The libibverbs of this project has these functions, and no other one: a program
 * that is to run on others too finds them by dlsym.
 */
#ifndef VERBS_EXTENSIONS_H
#define VERBS_EXTENSIONS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;

enum verbs_extension_kind {
	VERBS_EXTENSION_CALL,		/* verbs_call_extension, if it takes bytes */
	VERBS_EXTENSION_WORK_REQUEST,	/* posted by Rust programs only */
};

struct verbs_extension {
	char name[56];			/* the vendor in front; ends with 0 */
	uint32_t version;		/* counts up when what goes in or out changes its meaning */
	uint32_t kind;			/* enum verbs_extension_kind */
};

/*
 * Lists the extensions of a device: fills as many as max says, and returns how many there are. -1 with errno EINVAL if the
 * context is not one, or list is NULL and max is not 0.
 */
int verbs_query_extensions(struct ibv_context *context, struct verbs_extension *list, int max);

/*
 * Calls an extension, and waits for its answer. *output_len is the room at output, and becomes the length of the answer.
 * Returns 0, or an error number:
 *   EOPNOTSUPP  the device has no such extension, not in this version, or not for bytes
 *   ENOSPC      there is not room enough: nothing is written but *output_len
 *   EINVAL      the input is none of this extension, or an argument is wrong
 *   EIO         the device is gone
 * The documentation of hca_sim::extension says what the bytes of each mean.
 */
int verbs_call_extension(struct ibv_context *context, const char *name, uint32_t version,
			 const void *input, size_t input_len, void *output, size_t *output_len);

#ifdef __cplusplus
}
#endif

#endif
