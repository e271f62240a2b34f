"""Counting in assembly texts as the disassembler and the compiler write them."""

import pytest

from pagedlab.gpu.assembly import MemoryAccess, count, resources

SASS = """
	.section	.text.kernel,"ax",@progbits
kernel:
.text.kernel:
	//## File "/folder/kernel.py", line 10
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
	//## File "/folder/kernel.py", line 12
	//## File "/folder/helper.py", line 3 inlined at "/folder/kernel.py", line 12
        /*0020*/              @!P5 LDGSTS.E [R75], [R6.64], P1 ;
        /*0030*/               @P0 LDGSTS.E.BYPASS.LTC128B.128 [R78], [R18.64], P6 ;
        /*0040*/              @UP0 LDGSTS.E.BYPASS.128 [R78], [R18.64], P6 ;
        /*0050*/                   LDGDEPBAR ;
        /*0060*/                   DEPBAR.LE SB0, 0x1 ;
	//## File "/folder/kernel.py", line 11
        /*0070*/                   LDG.E.U16 R8, [R2.64+0x4] ;
        /*0080*/                   LDG.E.U16.CONSTANT R8, [R2.64+0x6] ;
        /*0090*/                   LDG.E R8, [R2.64+0x8] ;
        /*00a0*/                   LDG.E.64 R8, [R2.64+0x8] ;
        /*00b0*/                   STG.E.U8 [R2.64], R4 ;
        /*00c0*/                   STG.E.ENL2.256 [R2.64], R4, R8 ;
        /*00d0*/                   STL.64 [R1+0x8], R4 ;
        /*00e0*/                   LDL.LU.128 R4, [R1+0x8] ;
        /*00f0*/                   LDS.128 R4, [R1+0x8] ;
        /*0100*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0110*/                   HMMA.1688.F32.TF32 R4, R8, R10, R4 ;
        /*0120*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0130*/              @!P0 UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], !UPT ;
        /*0140*/                   UTMALDG.2D [UR8], [UR6] ;
        /*0150*/                   FFMA R1, R2, R3, R4 ;
        /*0160*/                   EXIT ;
.L_x_0:
        /*10170*/                  BRA `(.L_x_0);
        /*10180*/                  NOP;
"""


def test_sass():
    found = count(SASS, "cuda")
    assert (found.loads_16b, found.other_loads) == (1, 4)
    assert (found.stores_16b, found.other_stores) == (1, 1)
    assert (found.async_copies_16b, found.other_async_copies) == (2, 1)
    assert (found.local_loads, found.local_stores, found.waits, found.bulk_copies) == (1, 1, 2, 1)
    assert found.tensor_cores == {"HMMA": 2, "HGMMA": 1, "UTCMMA": 1}
    assert (found.tensor_core, found.tensor_core_kind, found.tf32) == (4, "HMMA", 1)
    assert found.total == 24


def test_accesses_are_by_line_kind_and_width():
    helper, kernel = "/folder/helper.py", "/folder/kernel.py"
    assert count(SASS, "cuda").accesses == (
        MemoryAccess("async copy", 4, helper, 3, 1),
        MemoryAccess("async copy", 16, helper, 3, 2),
        MemoryAccess("load", 16, kernel, 10, 1),
        MemoryAccess("load", 2, kernel, 11, 2),
        MemoryAccess("load", 4, kernel, 11, 1),
        MemoryAccess("load", 8, kernel, 11, 1),
        MemoryAccess("local load", 16, kernel, 11, 1),
        MemoryAccess("local store", 8, kernel, 11, 1),
        MemoryAccess("store", 1, kernel, 11, 1),
        MemoryAccess("store", 32, kernel, 11, 1),
    )


AMD = """
	.file	1 "/folder" "kernel.py"
kernel:                                 ; @kernel
	.loc	1 10 0 prologue_end             ; kernel.py:10:0
	s_load_dwordx4 s[0:3], s[0:1], 0x0
	v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]
	v_mfma_f32_16x16x8_xf32 v[0:3], v[16:17], v[18:19], v[0:3]
	v_wmma_f32_16x16x16_f16 v[48:55], v[212:219], v[144:151], v[40:47]
	.loc	1 11 4 is_stmt 1                ; kernel.py:11:4
	global_load_dwordx4 v[8:11], v3, s[4:5]
	buffer_load_dwordx4 v[8:11], v3, s[4:7], 0 offen
	.loc	1 0 4 is_stmt 0
	buffer_load_dword v3, s[4:7], 0 offen lds
	buffer_load_ushort v3, v4, s[4:7], 0 offen
	global_load_b128 v[8:11], v3, s[4:5]
	global_load_u16 v8, v3, s[4:5]
	global_load_lds_dwordx4 v[8:9], off
	global_store_dwordx2 v3, v[8:9], s[4:5]
	buffer_store_b16 v3, v4, s[4:7], 0 offen
	buffer_store_short_d16_hi v3, v4, s[4:7], 0 offen
	scratch_load_b32 v1, off, off offset:4
	scratch_store_dwordx4 off, v[4:7], off
	s_nop 0
	s_endpgm
    .vgpr_count:     161
    .private_segment_fixed_size: 544
"""


def test_amd():
    found = count(AMD, "hip")
    assert (found.loads_16b, found.other_loads) == (3, 2)
    assert (found.stores_16b, found.other_stores) == (0, 3)
    assert (found.async_copies_16b, found.other_async_copies) == (1, 1)
    assert (found.local_loads, found.local_stores) == (1, 1)
    assert found.tensor_cores == {"MFMA": 2, "WMMA": 1} and found.tf32 == 1
    assert found.total == 17
    assert {(one.file, one.line) for one in found.accesses} == {("/folder/kernel.py", 11)}
    assert sorted(one.bytes for one in found.accesses if one.kind == "store") == [2, 8]


def test_resources():
    assert resources("REG:96 STACK:0 SHARED:0 LOCAL:0", "", "cuda") == (96, 0)
    assert resources(" Function kernel:\n  REG:255 STACK:432 SHARED:0 LOCAL:0", "", "cuda") == (255, 432)
    assert resources("", AMD, "hip") == (161, 544)


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_nothing_is_nothing(backend):
    found = count("", backend)
    assert found.total == found.tensor_core == 0 and found.accesses == () and found.tensor_core_kind == ""
