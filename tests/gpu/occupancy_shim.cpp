// NVIDIA's own occupancy rule, for `count` kernels at once: what test_occupancy.py compares ours with. Six results a
// kernel: blocks per multiprocessor, the blocks that registers, shared memory, warps and block places allow, and the
// header's bits for which of them limit.
#include <cuda_occupancy.h>

struct Architecture {
    int major, minor, warps_per_sm, shared_per_sm, shared_per_block, reserved_shared;
};

extern "C" int occupancy_of_many(
    const Architecture *one, int count, const int *registers, const int *shared, const int *warps, int *results)
{
    cudaOccDeviceProp device;
    device.computeMajor = one->major;
    device.computeMinor = one->minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = one->warps_per_sm * 32;
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = one->shared_per_sm;
    device.sharedMemPerBlockOptin = one->shared_per_block;
    device.reservedSharedMemPerBlock = one->reserved_shared;
    device.numSms = 1;
    cudaOccDeviceState state;
    for (int i = 0; i < count; i++) {
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers[i];
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = shared[i];
        kernel.numBlockBarriers = 1;
        cudaOccResult result;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, warps[i] * 32, shared[i]);
        if (status != CUDA_OCC_SUCCESS) return status;
        int *row = results + 6 * i;
        row[0] = result.activeBlocksPerMultiprocessor;
        row[1] = result.blockLimitRegs;
        row[2] = result.blockLimitSharedMem;
        row[3] = result.blockLimitWarps;
        row[4] = result.blockLimitBlocks;
        row[5] = result.limitingFactors;
    }
    return 0;
}
