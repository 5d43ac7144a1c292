//! The whole state as dictionaries, ready for `json.dumps`.

use cpkv_core::machine::Phase;
use cpkv_core::{Dump, NodeDump, OperationDump, PageId, SlotId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::transaction::{kind_name, number};

/// What `CacheManager.dump` returns.
pub(crate) fn to_dict<'py>(py: Python<'py>, dump: &Dump) -> PyResult<Bound<'py, PyDict>> {
    let nodes: Vec<_> = dump.nodes.iter().map(|node| node_dict(py, node)).collect::<PyResult<_>>()?;
    let operations: Vec<_> = dump.operations.iter().map(|one| operation_dict(py, one)).collect::<PyResult<_>>()?;
    let dict = PyDict::new(py);
    dict.set_item("nodes", PyList::new(py, nodes)?)?;
    dict.set_item("operations", PyList::new(py, operations)?)?;
    dict.set_item("fenced_pages", &dump.fenced_pages)?;
    Ok(dict)
}

fn pages(pages: &[PageId]) -> Vec<u32> {
    pages.iter().map(|page| page.raw()).collect()
}

fn slots(slots: &[SlotId]) -> Vec<u32> {
    slots.iter().map(|slot| slot.raw()).collect()
}

fn node_dict<'py>(py: Python<'py>, node: &NodeDump) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let namespace = node.namespace.as_deref().map(|name| name.escape_ascii().to_string());
    dict.set_item("index", node.index)?;
    dict.set_item("parent", node.parent)?;
    dict.set_item("namespace", namespace)?;
    dict.set_item("flushed", node.is_flushed)?;
    dict.set_item("cut_off", node.is_cut_off)?;
    dict.set_item("end_page", node.end.0)?;
    dict.set_item("token_ids", &node.tokens)?;
    dict.set_item("successor", node.successor)?;
    dict.set_item("device_pages", pages(&node.device_pages))?;
    dict.set_item("host_slots", slots(&node.host_slots))?;
    dict.set_item("transaction", node.operation.map(number))?;
    dict.set_item("locks", node.locks)?;
    dict.set_item("held", node.is_held)?;
    dict.set_item("hits", node.hits)?;
    Ok(dict)
}

fn operation_dict<'py>(py: Python<'py>, one: &OperationDump) -> PyResult<Bound<'py, PyDict>> {
    let (phase, reason) = match one.state.phase {
        Phase::Reserved => ("reserved", None),
        Phase::Pending => ("pending", None),
        Phase::Committed => ("committed", None),
        Phase::Draining(reason) => ("draining", Some(reason.name())),
        Phase::Quarantined(reason) => ("quarantined", Some(reason.name())),
        Phase::Gone(reason) => ("gone", Some(reason.name())),
    };
    let dict = PyDict::new(py);
    dict.set_item("id", number(one.operation))?;
    dict.set_item("status", phase)?;
    dict.set_item("reason", reason)?;
    dict.set_item("landed", one.state.has_landed)?;
    dict.set_item("waits_for_parent", one.state.waits_for_parent)?;
    dict.set_item("kind", kind_name(one.kind))?;
    dict.set_item("node", one.node)?;
    dict.set_item("first_page", one.first.0)?;
    dict.set_item("device_pages", pages(&one.device_pages))?;
    dict.set_item("host_slots", slots(&one.host_slots))?;
    Ok(dict)
}
