//! Placeholder crate document.
