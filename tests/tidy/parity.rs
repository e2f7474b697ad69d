//! `docs/OFED.md` compares the calls of OFED with those here, and is complete: every function that our C libraries export
//! and every call of the kernel's interface in [`KERNEL`] has a row, and what a row names on our side is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{RustFile, Text};
use crate::{Violation, scan, types};

/// The document.
pub(crate) const PARITY: &str = "docs/OFED.md";

/// Where the exports of the C libraries are listed, one `"name" = function` a line.
const EXPORTS: &str = "shims/ibverbs/src/export/";

/// The table of the functions that C headers call through a context.
const CALLED: &str = "shims/ibverbs/src/";

/// What begins the cell of a call that is missing here; the reason follows.
const MISSING: &str = "missing: ";

/// The calls that clients of the kernel's verbs and connection managers make, by the names of OFED and Linux; those that
/// Linux has taken out since are among them.
const KERNEL: &str = "
ib_register_client ib_unregister_client ib_set_client_data ib_get_client_data ib_query_device ib_query_port
ib_modify_device ib_modify_port ib_query_gid rdma_query_gid ib_find_gid rdma_find_gid ib_query_pkey ib_find_pkey
ib_get_cached_pkey ib_find_cached_pkey ib_register_event_handler ib_unregister_event_handler
rdma_node_get_transport rdma_port_get_link_layer ib_get_vector_affinity
ib_alloc_pd ib_dealloc_pd
rdma_create_ah ib_create_ah ib_create_ah_from_wc ib_init_ah_attr_from_wc ib_init_ah_attr_from_path rdma_modify_ah
rdma_query_ah rdma_destroy_ah ib_modify_ah ib_query_ah ib_destroy_ah ib_get_cached_gid ib_find_cached_gid
ib_create_cq ib_alloc_cq ib_alloc_cq_any ib_free_cq ib_cq_pool_get ib_cq_pool_put ib_process_cq_direct ib_destroy_cq
ib_resize_cq rdma_set_cq_moderation ib_modify_cq ib_poll_cq ib_peek_cq ib_req_notify_cq ib_req_ncomp_notif
ib_create_srq ib_modify_srq ib_query_srq ib_destroy_srq ib_post_srq_recv
ib_create_qp ib_modify_qp ib_modify_qp_is_ok ib_query_qp ib_destroy_qp ib_open_qp ib_close_qp ib_post_send ib_post_recv
ib_drain_qp ib_drain_sq ib_drain_rq
ib_alloc_xrcd ib_dealloc_xrcd ib_attach_mcast ib_detach_mcast
ib_create_wq ib_modify_wq ib_destroy_wq ib_create_flow ib_destroy_flow
ib_get_dma_mr ib_reg_phys_mr ib_rereg_phys_mr ib_reg_user_mr ib_query_mr ib_dereg_mr ib_advise_mr ib_check_mr_access
ib_alloc_fast_reg_mr ib_alloc_fast_reg_page_list ib_free_fast_reg_page_list ib_cm_establish
ib_alloc_mr ib_map_mr_sg ib_update_fast_reg_key ib_inc_rkey ib_alloc_mr_integrity ib_map_mr_sg_pi ib_check_mr_status
ib_alloc_mw ib_bind_mw ib_dealloc_mw
ib_alloc_fmr ib_map_phys_fmr ib_unmap_fmr ib_dealloc_fmr ib_create_fmr_pool ib_destroy_fmr_pool ib_flush_fmr_pool
ib_fmr_pool_map_phys ib_fmr_pool_unmap
ib_dma_map_single ib_dma_unmap_single ib_dma_map_page ib_dma_unmap_page ib_dma_map_sg ib_dma_unmap_sg
ib_dma_mapping_error ib_dma_sync_single_for_cpu ib_dma_sync_single_for_device
rdma_rw_ctx_init rdma_rw_ctx_post rdma_rw_ctx_destroy
ib_register_mad_agent ib_unregister_mad_agent ib_create_send_mad ib_free_send_mad ib_post_send_mad ib_free_recv_mad
ib_cancel_mad ib_modify_mad
ib_sa_register_client ib_sa_unregister_client ib_sa_cancel_query ib_sa_path_rec_get ib_sa_service_rec_query
ib_sa_join_multicast ib_sa_free_multicast ib_sa_get_mcmember_rec ib_init_ah_from_mcmember ib_sa_guid_info_rec_query
ib_create_cm_id ib_destroy_cm_id ib_cm_listen ib_cm_notify ib_cm_init_qp_attr ib_send_cm_req ib_send_cm_rep
ib_send_cm_rtu ib_send_cm_rej ib_send_cm_mra ib_send_cm_dreq ib_send_cm_drep ib_send_cm_lap ib_send_cm_apr
ib_send_cm_sidr_req ib_send_cm_sidr_rep
iw_create_cm_id iw_destroy_cm_id iw_cm_listen iw_cm_connect iw_cm_accept iw_cm_reject iw_cm_disconnect
iw_cm_init_qp_attr
rdma_create_id rdma_destroy_id rdma_bind_addr rdma_resolve_addr rdma_resolve_route rdma_create_qp rdma_destroy_qp
rdma_init_qp_attr rdma_connect rdma_connect_locked rdma_connect_ece rdma_listen rdma_accept rdma_accept_ece rdma_notify
rdma_reject rdma_disconnect rdma_join_multicast rdma_leave_multicast rdma_set_service_type rdma_set_reuseaddr
rdma_set_afonly rdma_set_ack_timeout rdma_set_min_rnr_timer rdma_get_service_id rdma_reject_msg rdma_is_consumer_reject
rdma_consumer_reject_data rdma_event_msg
";

/// The columns of a table, by its heading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Columns {
    /// A call, and ours in Rust.
    Kernel,
    /// A call, whether the C library has it, and ours in Rust.
    Library,
}

/// A row of a table.
struct Row<'t> {
    line: usize,
    columns: Columns,
    /// Their names; one that ends in `*` stands for all that begin so.
    theirs: Vec<&'t str>,
    cells: Vec<&'t str>,
}

/// What is missing from the document, and what it names that does not exist.
pub(crate) fn parity(texts: &[Text], files: &[RustFile]) -> Vec<Violation> {
    let Some(document) = texts.iter().find(|text| text.path == PARITY) else {
        return vec![violation(1, "the document is missing".into())];
    };
    let rows = rows(&document.text);
    let exported = exported(texts);
    let sources = files.iter().filter(|file| file.path.starts_with(CALLED));
    let called = |name: &str| {
        let word = name.split_once('_').map_or(name, |(_, word)| word);
        let word = word.strip_suffix("_ex").unwrap_or(word);
        let is_here = |code| {
            [word, &format!("{word}_ex")]
                .iter()
                .any(|word| scan::words(code, word).next().is_some())
        };
        let mut sources = sources.clone();
        sources.any(|file| is_here(&file.code))
    };
    let ours = definitions(files);
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let mut say = |what: String| violations.push(violation(row.line, what));
        for &name in &row.theirs {
            if !seen.insert((row.columns == Columns::Kernel, name)) {
                say(format!("`{name}` is there twice"));
            }
            let is_exported = exported.iter().any(|function| matches(name, function));
            match (row.columns, row.cells.first().copied()) {
                (Columns::Kernel, _) => {}
                (_, Some("exported")) if is_exported => {}
                (_, Some("called")) if !is_exported && called(name) => {}
                (_, Some(cell)) if !is_exported && has_reason(cell) => {}
                _ => say(format!("`{name}`: the C library says otherwise")),
            }
        }
        let last = row.cells.last().copied().unwrap_or_default();
        let paths: Vec<&str> = quoted(last).collect();
        if paths.is_empty() && !has_reason(last) {
            say(format!("names neither ours nor a reason: {last}"));
        }
        for path in paths.into_iter().filter(|path| !is_there(&ours, path)) {
            say(format!("`{path}` does not exist"));
        }
    }
    let has = |columns: Columns, wanted: &str| {
        let mut rows = rows.iter().filter(|row| row.columns == columns);
        rows.any(|row| row.theirs.iter().any(|name| matches(name, wanted)))
    };
    for name in &exported {
        if !has(Columns::Library, name) {
            violations.push(violation(1, format!("`{name}` is exported and has no row")));
        }
    }
    for name in KERNEL.split_whitespace() {
        if !has(Columns::Kernel, name) {
            violations.push(violation(1, format!("`{name}` has no row")));
        }
    }
    violations
}

fn violation(line: usize, what: String) -> Violation {
    let path = PARITY.into();
    Violation { path, line, what }
}

fn matches(name: &str, function: &str) -> bool {
    match name.strip_suffix('*') {
        Some(start) => function.starts_with(start),
        None => name == function,
    }
}

/// A reason takes more than a word.
fn has_reason(cell: &str) -> bool {
    let reason = cell.strip_prefix(MISSING).unwrap_or_default();
    reason.split_whitespace().count() > 1
}

/// The words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The rows of all tables; a table's head says which one it is.
fn rows(text: &str) -> Vec<Row<'_>> {
    let mut columns = None;
    let mut rows = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(inner) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            columns = None;
            continue;
        };
        let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        match columns {
            None => {
                let is_library = cells.len() == 3;
                columns = Some(if is_library {
                    Columns::Library
                } else {
                    Columns::Kernel
                });
            }
            Some(_) if cells[0].starts_with("---") => {}
            Some(columns) => rows.push(Row {
                line: number,
                columns,
                theirs: quoted(cells[0]).collect(),
                cells: cells[1..].to_vec(),
            }),
        }
    }
    rows
}

/// The functions that the C libraries export.
fn exported(texts: &[Text]) -> BTreeSet<&str> {
    let files = texts.iter().filter(|text| text.path.starts_with(EXPORTS));
    let lines = files.flat_map(|text| text.text.lines());
    lines.flat_map(exports).collect()
}

/// The functions of a line of an export list.
fn exports(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<&str> = line.split('"').collect();
    let functions = parts.windows(2).filter(|pair| pair[1].starts_with(" = "));
    functions
        .map(|pair| pair[0])
        .collect::<Vec<_>>()
        .into_iter()
}

/// What the sources define: functions by the type of their `impl` or `trait`, or by their file; the words of types.
fn definitions(files: &[RustFile]) -> BTreeMap<String, BTreeSet<&str>> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let files = files
        .iter()
        .filter(|file| !file.is_test && file.path.contains("/src/"));
    for file in files {
        let functions = |code| {
            scan::functions(code)
                .into_iter()
                .map(|function| function.name)
        };
        let module = file
            .path
            .trim_end_matches("/mod.rs")
            .trim_end_matches(".rs");
        let module = module.rsplit('/').next().unwrap_or_default();
        found
            .entry(module.into())
            .or_default()
            .extend(functions(&file.code));
        for kind in ["impl", "trait", "struct", "enum"] {
            for at in scan::words(&file.code, kind) {
                let head_and_body = &file.code[at + kind.len()..];
                let end = head_and_body
                    .find(['{', ';'])
                    .unwrap_or(head_and_body.len());
                let open = at + kind.len() + end;
                // A type without a body ends at once.
                let has_body = file.code[open..].starts_with('{');
                let close = scan::closing(&file.code, open).filter(|_| has_body);
                let close = close.unwrap_or(open);
                let head = &head_and_body[..end];
                let name = match kind {
                    "impl" => types::type_of(head).unwrap_or_default(),
                    _ => head.trim().into(),
                };
                let name = name
                    .split(|c: char| c != '_' && !c.is_alphanumeric())
                    .next();
                let names = found.entry(name.unwrap_or_default().into()).or_default();
                let body = &file.code[open..close];
                match kind {
                    "impl" => names.extend(functions(body)),
                    _ => names.extend(body.split(|c: char| c != '_' && !c.is_alphanumeric())),
                }
            }
        }
    }
    found
}

/// Whether a type, or a member of one, is defined.
fn is_there(ours: &BTreeMap<String, BTreeSet<&str>>, path: &str) -> bool {
    match path.rsplit_once("::") {
        Some((owner, member)) => {
            let owner = owner.rsplit("::").next().unwrap_or_default();
            ours.get(owner)
                .is_some_and(|members| members.contains(member))
        }
        None if path.starts_with(char::is_uppercase) => ours.contains_key(path),
        None => ours.values().any(|members| members.contains(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, text: &str) -> Text {
        let (path, text) = (path.into(), text.into());
        Text { path, text }
    }

    fn judged(table: &str) -> Vec<String> {
        let code = "pub struct Pd;\nimpl Pd {\n    pub fn create(&self) {}\n}\nfn post_send() {}\n";
        let files = [RustFile::new("shims/ibverbs/src/pd.rs", code)];
        let exports = "\"IBVERBS_1.1\" {\n    \"ibv_alloc_pd\" = memory::alloc_pd,\n}\n";
        let texts = [
            text(PARITY, table),
            text("shims/ibverbs/src/export/mod.rs", exports),
        ];
        let found = parity(&texts, &files).into_iter();
        let found = found.filter(|violation| {
            !KERNEL
                .split_whitespace()
                .any(|name| violation.what == format!("`{name}` has no row"))
        });
        found.map(|violation| violation.what).collect()
    }

    const HEAD: &str = "| libibverbs | C | Rust |\n|---|---|---|\n";

    #[test]
    fn what_is_there_is_accepted() {
        let rows = "| `ibv_alloc_pd` | exported | `Pd::create` |\n| `ibv_post_send` | called | missing: not here |\n\
                    | `ibv_flow` | missing: no steering | missing: no steering |\n";
        assert_eq!(judged(&format!("{HEAD}{rows}")), [""; 0]);
    }

    #[test]
    fn a_wrong_row_is_found() {
        for (row, said) in [
            (
                "| `ibv_alloc_pd` | exported | `Pd::make` |",
                "`Pd::make` does not exist",
            ),
            (
                "| `ibv_alloc_pd` | missing: no domains | `Pd` |",
                "`ibv_alloc_pd`: the C library says otherwise",
            ),
            (
                "| `ibv_alloc_pd` | exported | missing: why |",
                "names neither ours nor a reason: missing: why",
            ),
        ] {
            assert_eq!(judged(&format!("{HEAD}{row}\n")), [said], "{row}");
        }
        assert_eq!(judged(HEAD), ["`ibv_alloc_pd` is exported and has no row"]);
        let good = "| `ibv_alloc_pd` | exported | `Pd` |\n";
        let twice = judged(&format!("{HEAD}{good}{good}"));
        assert_eq!(twice, ["`ibv_alloc_pd` is there twice"]);
        let other = format!("{HEAD}{good}| `ibv_other` | called | `Pd` |\n");
        assert_eq!(
            judged(&other),
            ["`ibv_other`: the C library says otherwise"]
        );
    }

    #[test]
    fn a_call_of_the_kernel_without_a_row_is_found() {
        let found = parity(
            &[text(
                PARITY,
                "| ib_core | here |\n|---|---|\n| `ib_alloc_pd` | `Pd` |\n",
            )],
            &[],
        );
        let said: Vec<_> = found
            .iter()
            .map(|violation| violation.what.as_str())
            .collect();
        assert!(said.contains(&"`ib_dealloc_pd` has no row"));
        assert!(!said.contains(&"`ib_alloc_pd` has no row"));
    }
}
