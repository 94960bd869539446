//! Regions as memory of caches and pools, without privilege.
#![allow(clippy::unwrap_used)]

use std::alloc::Layout;
use std::ptr::NonNull;

use linux::memory::{Arena, HUGE_PAGE_BYTES, Pages, Want};
use pagefrag::{Align, AllocError, Memory, PagePool, PollCache, PoolConfig, Source};

fn pool(region: &Arena) -> PagePool {
    PagePool::new(PoolConfig::default().with_source(Source::new(region.clone()).share()))
}

#[test]
fn a_region_is_used_wholly_and_again() {
    for pages in [Pages::Ordinary, Pages::Transparent] {
        let region = Arena::map(Want { bytes: 4 << 20, pages, ..Want::default() }).unwrap();
        for _ in 0..3 {
            let mut pool = pool(&region);
            let mut out = Vec::new();
            let refused = loop {
                match pool.alloc() {
                    Ok(mut page) => {
                        page.fill(out.len() as u8);
                        out.push(page);
                    }
                    Err(refused) => break refused,
                }
            };
            assert_eq!(refused, AllocError::OutOfMemory { bytes: 4096 });
            assert_eq!((out.len(), region.free_bytes()), (1024, 0));
            assert!(out.iter().enumerate().all(|(number, page)| **page == [number as u8; 4096]));
            drop(pool);
            drop(out);
            assert_eq!(region.free_bytes(), 4 << 20);
        }
        // Small pages did not use the large blocks up.
        let mut cache = PollCache::with_source(Source::new(region.clone()).share());
        assert_eq!(cache.alloc_zeroed(32768, Align::PAGE).map(|frag| *frag == [0; 32768]), Ok(true));
    }
}

#[test]
fn what_was_got_is_told() {
    for pages in [Pages::Ordinary, Pages::Transparent] {
        let want = Want { bytes: 3 * HUGE_PAGE_BYTES + 1, pages, ..Want::default() };
        let got = Arena::map(want).unwrap().got();
        let rounded = if pages == Pages::Ordinary { 3 * HUGE_PAGE_BYTES + 4096 } else { 4 * HUGE_PAGE_BYTES };
        assert_eq!(got.bytes, rounded);
        if let Some(huge_bytes) = got.huge_bytes {
            assert!(huge_bytes <= got.bytes && huge_bytes.is_multiple_of(HUGE_PAGE_BYTES), "{got:?}");
            assert!(huge_bytes == 0 || pages == Pages::Transparent || always_huge(), "{got:?}");
        }
        if let Some(nodes) = &got.node_bytes {
            // All of it is present.
            assert_eq!(nodes.iter().map(|(_, bytes)| bytes).sum::<usize>(), got.bytes, "{got:?}");
        }
    }
}

fn always_huge() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[always]"))
}

#[test]
fn reserved_huge_pages_are_got_or_refused() {
    let want = Want { bytes: 100, pages: Pages::Reserved, ..Want::default() };
    match Arena::map(want) {
        Ok(region) => {
            let got = region.got();
            assert_eq!(got.bytes, HUGE_PAGE_BYTES);
            assert!(got.huge_bytes.is_none_or(|bytes| bytes == HUGE_PAGE_BYTES), "{got:?}");
        }
        Err(error) => assert!(error.to_string().contains("Reserved memory"), "{error}"),
    }
    // More than any host has set aside.
    assert!(Arena::map(Want { bytes: 1 << 46, ..want }).is_err());
    assert!(Arena::map(Want { bytes: usize::MAX, ..want }).is_err());
}

#[test]
fn a_node_that_is_there_is_taken_and_another_refused() {
    let want = Want { bytes: 1 << 20, ..Want::default() };
    match Arena::map(Want { numa_node: Some(0), ..want }) {
        Ok(region) => {
            let nodes = region.got().node_bytes.unwrap_or_default();
            // Preferred, so elsewhere only where it is full.
            assert!(
                nodes.is_empty() || nodes.iter().any(|&(node, bytes)| node == 0 && bytes > 0),
                "{nodes:?}"
            );
        }
        // Not allowed, or a kernel without NUMA.
        Err(error) => assert!(error.to_string().starts_with("mbind on NUMA node 0"), "{error}"),
    }
    for node in [1023, 1024, u32::MAX] {
        let refused = Arena::map(Want { numa_node: Some(node), ..want }).unwrap_err();
        assert!(refused.to_string().contains(&format!("NUMA node {node}")), "{refused}");
    }
}

#[test]
fn the_heap_steps_in_and_its_pages_are_not_kept() {
    let region = Arena::map(Want { bytes: 8 * 4096, or_heap: true, ..Want::default() }).unwrap();
    let mut pool = pool(&region);
    let out: Vec<_> = (0..20).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!((region.free_bytes(), pool.in_flight()), (0, 20));
    out.into_iter().for_each(|page| pool.recycle(page));
    let stats = pool.stats();
    assert_eq!((stats.in_cache, stats.waive, stats.released), (8, 12, 12));
    pool.release_spare();
    assert_eq!(region.free_bytes(), 8 * 4096);
}

#[test]
fn blocks_are_aligned_zeroed_and_only_what_fits() {
    let region = Arena::map(Want { bytes: 1 << 20, ..Want::default() }).unwrap();
    let layout = |bytes, align| Layout::from_size_align(bytes, align).unwrap();
    for refused in
        [layout(0, 1), layout((1 << 20) + 1, 1), layout(8, 4 << 20), layout(isize::MAX as usize, 1)]
    {
        assert!(region.alloc(refused).is_none(), "{refused:?}");
    }
    for wanted in [layout(1, 1), layout(4096, 4096), layout(5000, 65536), layout(1 << 20, 4096)] {
        for _ in 0..3 {
            let data = region.alloc(wanted).unwrap();
            assert_eq!(data.addr().get() % wanted.align(), 0);
            assert!(bytes_of(data, wanted).iter().all(|&byte| byte == 0));
            bytes_of(data, wanted).fill(0xff);
            free(&region, data, wanted);
        }
    }
    assert_eq!(region.free_bytes(), 1 << 20);
}

#[allow(unsafe_code)]
fn bytes_of<'a>(data: NonNull<u8>, layout: Layout) -> &'a mut [u8] {
    // SAFETY: the region has just given so many bytes out, and the caller does not keep this beyond `free`.
    unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), layout.size()) }
}

#[allow(unsafe_code)]
fn free(region: &Arena, data: NonNull<u8>, layout: Layout) {
    // SAFETY: it came from this region with this layout, and is not used any more.
    unsafe { region.free(data, layout) }
}
