/* What is in the memory of both ends. */
#include "rc_peer.h"
#include <endian.h>

/* The eight bytes at index i of the message with that seed (splitmix64). */
static uint64_t word(uint64_t seed, uint64_t i)
{
	uint64_t z = (seed << 32) + (i + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void fill(uint8_t *at, uint32_t size, uint64_t seed)
{
	for (uint32_t i = 0; i < size; i += 8) {
		uint64_t w = htole64(word(seed, i / 8));
		memcpy(at + i, &w, size - i < 8 ? size - i : 8);
	}
}

/* Slots: 0 to count-1 are for what goes from the requester to the responder, the next count for what
 * comes back; each has a guard behind it. The counter of atomics is behind the last. */
uint8_t *slot(const struct end *e, uint32_t i) { return e->memory + i * e->stride; }
uint64_t counter_at(const struct end *e) { return 2ull * e->plan.count * e->stride; }

int check_bytes(const struct end *e, uint32_t i, uint32_t size, uint64_t seed)
{
	const uint8_t *at = slot(e, i);
	for (uint32_t k = 0; k < size; k += 8) {
		uint64_t w = htole64(word(seed, k / 8));
		if (memcmp(at + k, &w, size - k < 8 ? size - k : 8))
			return fail("slot %u differs in the 8 bytes from %u", i, k);
	}
	for (uint64_t k = size; k < e->stride; k++)
		CHECK(at[k] == GUARD, "slot %u: byte %lu, behind a message of %u, was overwritten", i, k, size);
	return 0;
}
