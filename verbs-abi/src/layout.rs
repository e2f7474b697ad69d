//! Sizes and offsets of the C structures on 64-bit machines. If a compiler lays out a structure differently, this does
//! not compile.

use std::mem::{offset_of, size_of};

use crate::*;

macro_rules! layout {
    ($($Type:ty = $size:literal { $($field:ident . $($more:ident).* @ $deep:literal,)* ; $($plain:ident @ $at:literal),* })*) => { $(
        const _: () = assert!(size_of::<$Type>() == $size);
        $(const _: () = assert!(offset_of!($Type, $plain) == $at);)*
        $(const _: () = assert!(offset_of!($Type, $field.$($more).*) == $deep);)*
    )* };
}

layout! {
    ContextOps = 256 {; alloc_mw @ 56, bind_mw @ 64, dealloc_mw @ 72, poll_cq @ 88, req_notify_cq @ 96, post_srq_recv @ 160,
        post_send @ 200, post_recv @ 208 }
    Context = 328 {; ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320 }
    VerbsContext = 696 {; query_port @ 48, advise_mr @ 56, alloc_null_mr @ 64, reg_dm_mr @ 104, alloc_dm @ 112, free_dm @ 120,
        modify_qp_rate_limit @ 152, alloc_parent_domain @ 160, dealloc_td @ 168, alloc_td @ 176, modify_cq @ 184,
        query_rt_values @ 240, create_cq_ex @ 248, query_device_ex @ 264, open_qp @ 304, create_qp_ex @ 312,
        get_srq_num @ 320, create_srq_ex @ 328, open_xrcd @ 336, close_xrcd @ 344, sz @ 360, context @ 368 }
    Device = 728 {; node_type @ 16, transport_type @ 20, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408,
        provider @ 664 }
    CompChannel = 16 {; fd @ 8, refcnt @ 12 }
    Cq = 128 {; channel @ 8, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72, comp_events_completed @ 120,
        async_events_completed @ 124 }
    CqEx = 288 { ops.start_poll @ 144, ops.read_opcode @ 168, ops.read_completion_ts @ 248,
        ops.read_completion_wallclock_ns @ 280,; comp_mask @ 128, status @ 132, wr_id @ 136 }
    Qp = 160 {; qp_context @ 8, pd @ 16, send_cq @ 24, recv_cq @ 32, srq @ 40, handle @ 48, qp_num @ 52, state @ 56,
        qp_type @ 60, mutex @ 64, cond @ 104, events_completed @ 152 }
    QpEx = 360 { ops.wr_atomic_cmp_swp @ 184, ops.wr_set_ud_addr @ 272, ops.wr_start @ 320, ops.wr_atomic_write @ 344,
        ops.wr_flush @ 352,; comp_mask @ 160, wr_id @ 168, wr_flags @ 176 }
    Srq = 128 {; srq_context @ 8, pd @ 16, handle @ 24, events_completed @ 120 }
    Pd = 16 {; handle @ 8 }
    Mr = 48 {; pd @ 8, addr @ 16, length @ 24, handle @ 32, lkey @ 36, rkey @ 40 }
    Mw = 32 {; pd @ 8, rkey @ 16, handle @ 20, mw_type @ 24 }
    Ah = 24 {; pd @ 8, handle @ 16 }
    Dm = 32 {; memcpy_to_dm @ 8, memcpy_from_dm @ 16, comp_mask @ 24, handle @ 28 }
    AsyncEvent = 16 {; event_type @ 8 }
    Wc = 48 {; status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_or_key @ 24, qp_num @ 28, src_qp @ 32, wc_flags @ 36,
        pkey_index @ 40, slid @ 42, sl @ 44, dlid_path_bits @ 45 }
    Sge = 16 {; length @ 8, lkey @ 12 }
    SendWr = 128 {; next @ 8, sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_or_key @ 36, wr @ 40, remote_srqn @ 72,
        bind_mw @ 80 }
    Atomic = 32 {; compare_add @ 8, swap @ 16, rkey @ 24 }
    RecvWr = 32 {; next @ 8, sg_list @ 16, num_sge @ 24 }
    MwBind = 48 {; send_flags @ 8, bind_info @ 16 }
    MwBindInfo = 32 {; addr @ 8, length @ 16, mw_access_flags @ 24 }
    PortAttr = 56 {; gid_tbl_len @ 12, max_msg_sz @ 20, pkey_tbl_len @ 32, lid @ 34, lmc @ 38, active_width @ 43, phys_state @ 45,
        link_layer @ 46, flags @ 47, port_cap_flags2 @ 48, active_speed_ex @ 52 }
    QpAttr = 144 {; qkey @ 16, dest_qp_num @ 28, cap @ 36, ah_attr @ 56, alt_ah_attr @ 88, pkey_index @ 120, max_rd_atomic @ 126,
        min_rnr_timer @ 128, timeout @ 130, alt_timeout @ 134, rate_limit @ 136 }
    AhAttr = 32 {; dlid @ 24, sl @ 26, src_path_bits @ 27, static_rate @ 28, is_global @ 29, port_num @ 30 }
    GlobalRoute = 24 {; flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22 }
    QpInitAttr = 64 {; srq @ 24, cap @ 32, qp_type @ 52, sq_sig_all @ 56 }
    QpInitAttrEx = 136 {; cap @ 32, sq_sig_all @ 56, comp_mask @ 60, pd @ 64, xrcd @ 72, create_flags @ 80, max_tso_header @ 84,
        rwq_ind_tbl @ 88, source_qpn @ 120, send_ops_flags @ 128 }
    QpOpenAttr = 32 {; qp_num @ 4, xrcd @ 8, qp_context @ 16, qp_type @ 24 }
    SrqInitAttrEx = 64 {; attr @ 8, comp_mask @ 20, srq_type @ 24, pd @ 32, xrcd @ 40, cq @ 48, tm_cap @ 56 }
    CqInitAttrEx = 56 {; cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32, comp_mask @ 40, flags @ 44,
        parent_domain @ 48 }
    XrcdInitAttr = 12 {; fd @ 4, oflags @ 8 }
    ParentDomainInitAttr = 48 {; td @ 8, comp_mask @ 16, alloc @ 24, free @ 32, pd_context @ 40 }
    AllocDmAttr = 16 {; log_align_req @ 8 }
    GidEntry = 32 {; gid_index @ 16, port_num @ 20, gid_type @ 24, ndev_ifindex @ 28 }
    DeviceAttr = 232 {; node_guid @ 64, max_mr_size @ 80, vendor_id @ 96, max_qp @ 108, device_cap_flags @ 116, max_cq @ 128,
        max_qp_rd_atom @ 144, atomic_cap @ 164, max_mw @ 176, max_mcast_grp @ 188, max_ah @ 200, max_srq @ 212, max_pkeys @ 224,
        phys_port_cnt @ 227 }
    DeviceAttrEx = 400 {; comp_mask @ 232, odp_general_caps @ 240, completion_timestamp_mask @ 264, hca_core_clock @ 272,
        device_cap_flags_ex @ 280, tso_caps @ 288, rss_caps @ 296, max_wq_type_rq @ 328, packet_pacing_caps @ 332,
        raw_packet_caps @ 344, tm_caps @ 348, max_cq_count @ 368, max_dm_size @ 376, pci_fetch_add @ 384, xrc_odp_caps @ 392,
        phys_port_cnt_ex @ 396 }
    ValuesEx = 24 {; raw_clock @ 8 }
}

// Scatter/gather lists of programs are passed on unchanged.
const _: () = assert!(size_of::<Sge>() == size_of::<verbs_core::Sge>());
const _: () =
    assert!(offset_of!(verbs_core::Sge, len) == 8 && offset_of!(verbs_core::Sge, lkey) == 12);
