//! What packets do that the model does not show: sharing between threads, what is pinned, copy-break, conversion.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use pagefrag::{
    Align, Frag, HEADERS_BYTES, HEADROOM, LARGE_BLOCK_BYTES, Origin, PacketBuf, PacketError, Page, PagePool,
    Piece, PollCache, PoolConfig, SMALL_BLOCK_BYTES, TRAILER_BYTES, buffer_bytes, copy_break,
};
use support::Watched;

fn packet(cache: &mut PollCache, data: &[u8]) -> PacketBuf {
    let frag = cache.alloc(buffer_bytes(data.len()), Align::CACHE_LINE).unwrap();
    let mut packet = PacketBuf::new(frag, HEADROOM);
    packet.put(data.len()).unwrap().copy_from_slice(data);
    packet
}

#[test]
fn a_buffer_has_room_for_what_it_was_reckoned_for() {
    let mut cache = PollCache::new();
    for data_bytes in (0..4000).step_by(if cfg!(miri) { 399 } else { 1 }) {
        let bytes = buffer_bytes(data_bytes);
        assert_eq!(bytes % 64, 0);
        assert!(
            bytes >= HEADROOM + data_bytes + TRAILER_BYTES
                && bytes < HEADROOM + data_bytes + TRAILER_BYTES + 64
        );
        let packet = PacketBuf::new(cache.alloc(bytes, Align::CACHE_LINE).unwrap(), HEADROOM);
        assert_eq!(packet.headroom(), HEADROOM);
        assert_eq!(packet.tailroom(), bytes - HEADROOM - TRAILER_BYTES, "nothing is lost to alignment");
        cache.give_back_packet(packet);
    }
    assert_eq!(buffer_bytes(usize::MAX), usize::MAX);
    assert_eq!(buffer_bytes(usize::MAX - HEADROOM), usize::MAX);
}

#[test]
fn a_header_is_taken_off_and_another_one_put_on() {
    let mut cache = PollCache::new();
    let mut packet = packet(&mut cache, b"old header payload");
    assert_eq!(packet.pull(11).unwrap(), b"old header ");
    packet.push(4).unwrap().copy_from_slice(b"new ");
    assert_eq!(packet.data(), b"new payload");
    packet.trim(7);
    assert_eq!(packet.data(), b"new pay");
    let error = packet.pull(8).unwrap_err();
    assert_eq!(error, PacketError::Short { bytes: 8, len: 7 });
    assert!(error.to_string().contains("its head has 7"));
}

#[test]
fn the_last_that_is_left_may_write_again_and_the_block_is_freed_once() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let mut first = packet(&mut cache, &[1; 100]);
    first.attach(cache.alloc(50, Align::BYTE).unwrap());
    let mut second = first.share();
    let mut third = second.share();
    assert_eq!((first.data_mut(), third.push(1)), (None, Err(PacketError::Shared)));
    assert_eq!(second.make_mut().unwrap().as_ptr(), second.data().as_ptr());
    second.make_mut().unwrap().fill(2);
    assert_eq!((first.data(), second.data(), third.data()), (&[1; 100][..], &[2; 100][..], &[1; 100][..]));

    // The one whose trailer has the words goes first.
    drop(first);
    cache.give_back_packet(second);
    third.data_mut().unwrap().fill(3);
    third.push(HEADROOM).unwrap().fill(4);
    assert_eq!((third.len(), memory.blocks()), (100 + 50 + HEADROOM, 1));
    cache.give_back_packet(third);

    // All references were put back, without an atomic operation too few or too many.
    let before = cache.stats();
    let frag = cache.alloc(LARGE_BLOCK_BYTES, Align::BYTE).unwrap();
    assert_eq!(
        (cache.stats().reuses, cache.stats().large_refills),
        (before.reuses + 1, before.large_refills)
    );
    drop((frag, cache));
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn shares_are_read_and_end_on_other_threads() {
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    for round in 0..if cfg!(miri) { 5 } else { 200u8 } {
        let mut original = packet(&mut cache, &[round; 200]);
        original.attach(vec![round; 30]);
        let threads = [(); 3].map(|()| {
            let mut share = original.share();
            std::thread::spawn(move || {
                assert!(share.slices().flatten().all(|&byte| byte == round));
                if let Some(bytes) = share.data_mut() {
                    bytes.fill(0xee);
                }
            })
        });
        cache.give_back_packet(original);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    drop(cache);
    assert_eq!(memory.blocks(), 0);
}

#[test]
fn truesize_is_what_the_packet_alone_may_pin() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut cache = PollCache::with_source(source.clone());
    let mut pool = PagePool::new(PoolConfig { source, ..PoolConfig::default() });

    // A handle, a block and its node.
    let mut linear = packet(&mut cache, &[0; 64]);
    let one_block = 8 + LARGE_BLOCK_BYTES + 64;
    assert_eq!(linear.truesize(), one_block);
    linear.attach(cache.alloc(100, Align::BYTE).unwrap());
    assert_eq!(linear.truesize(), one_block, "the same block counts once");
    linear.attach(pool.alloc().unwrap());
    let with_page = linear.truesize();
    assert!((one_block + SMALL_BLOCK_BYTES..one_block + SMALL_BLOCK_BYTES + 512).contains(&with_page));
    let mut sum = linear.share().truesize();
    assert!(sum >= with_page, "a share pins all that the original does");
    sum += linear.truesize();
    assert!(sum >= memory.alive_bytes());

    let heap = PacketBuf::new(vec![0; 1000], HEADROOM);
    assert_eq!(heap.truesize(), 8 + 1000);
    let no_trailer = PacketBuf::new(vec![0; 100], HEADROOM);
    assert_eq!(no_trailer.truesize(), 8 + 100 + 64);
}

#[test]
fn pieces_tell_what_they_were_made_of() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut cache = PollCache::with_source(source.clone());
    let mut pool = PagePool::new(PoolConfig { source, ..PoolConfig::default() });
    let mut packet = packet(&mut cache, &[5; 64]);
    packet.attach(pool.alloc().unwrap());
    packet.attach(vec![6; 10]);
    let mut shared = Piece::from(vec![7; 10]);
    let other = shared.share();
    packet.attach(shared);

    let origins: Vec<Origin> = packet.into_pieces().map(Piece::into_origin).collect();
    let [Origin::Frag(frag), Origin::Page(page), Origin::Heap(bytes), Origin::Other(piece)] =
        <[Origin; 4]>::try_from(origins).unwrap()
    else {
        panic!("not what they were made of");
    };
    assert_eq!((frag.len(), page.len()), (buffer_bytes(64), SMALL_BLOCK_BYTES), "whole, with the trailer");
    assert!(
        frag.iter().rev().take(TRAILER_BYTES).all(|&byte| byte == 0),
        "no address is left in the trailer"
    );
    assert_eq!((&bytes[..], &piece[..]), (&[6; 10][..], &[7; 10][..]));
    drop(other);
    assert!(matches!(piece.into_origin(), Origin::Heap(_)));
    cache.give_back(frag);
    pool.recycle(page);
    assert_eq!(pool.stats().cached, 1);
}

#[test]
fn a_page_goes_back_to_its_pool_from_a_packet() {
    let memory = Watched::new();
    let mut pool = PagePool::new(PoolConfig::default().with_source(memory.source().share()));
    let mut head = PacketBuf::new(pool.alloc().unwrap(), HEADROOM);
    head.put(1514).unwrap();
    head.attach(pool.alloc().unwrap());
    pool.recycle_packet(head);
    assert_eq!((pool.stats().cached, pool.in_flight()), (2, 0));
    let mut piece = Piece::from(pool.alloc().unwrap());
    piece.truncate(3);
    pool.recycle_packet(PacketBuf::from(piece));
    assert_eq!((pool.stats().cached, pool.in_flight(), memory.blocks()), (3, 0, 2));
}

#[test]
fn short_frames_are_copied_and_long_ones_attached() {
    let memory = Watched::new();
    let source = memory.source().share();
    let mut cache = PollCache::with_source(source.clone());
    let mut pool = PagePool::new(PoolConfig { source, ..PoolConfig::default() });
    for len in [0, 1, 64, 127, 128, 129, 255, 256, 257, 1514, 4096] {
        let mut page = pool.alloc().unwrap();
        page.truncate(len);
        page.iter_mut().zip(0u8..=250).for_each(|(byte, value)| *byte = value);
        let frame = page.to_vec();
        let (packet, copied): (PacketBuf, Option<Page>) = copy_break(page, 256, |bytes| {
            assert_eq!(bytes, if len <= 256 { len } else { HEADERS_BYTES });
            cache.alloc(buffer_bytes(bytes), Align::CACHE_LINE).map(|frag| PacketBuf::new(frag, HEADROOM))
        })
        .unwrap();
        assert_eq!(packet.slices().collect::<Vec<_>>().concat(), frame);
        assert_eq!((copied.is_some(), packet.is_linear()), (len <= 256, len <= 256));
        assert_eq!(packet.head_len(), if len <= 256 { len } else { HEADERS_BYTES });
        for piece in packet.into_pieces() {
            match piece.into_origin() {
                Origin::Frag(frag) => cache.give_back(frag),
                Origin::Page(page) => pool.recycle(page),
                other => panic!("{other:?}"),
            }
        }
        copied.into_iter().for_each(|page| pool.recycle(page));
    }
    assert_eq!(pool.in_flight(), 0);
}

#[test]
fn copy_break_survives_a_failure_and_a_buffer_that_is_too_small() {
    let frame = vec![9; 300];
    let (error, frame) = copy_break(frame, 256, |_| Err("no memory")).unwrap_err();
    assert_eq!((error, frame.len()), ("no memory", 300), "the frame is not lost");
    for (room, head_len) in [(0, 0), (10, 10), (1000, 128)] {
        let (packet, copied) =
            copy_break(frame.clone(), 256, |_| Ok::<_, ()>(PacketBuf::new(vec![0; room], 0))).unwrap();
        assert_eq!((packet.head_len(), packet.len(), copied), (head_len, 300, None));
    }
}

#[test]
fn a_refusal_leaves_the_packet_as_it_was() {
    let mut packet = PacketBuf::new(vec![0; 500], 66);
    packet.put(10).unwrap().fill(1);
    let room = packet.tailroom();
    packet.attach(vec![2; 20]);
    assert_eq!(packet.put(1), Err(PacketError::Tailroom { bytes: 1, room: 0 }));
    assert_eq!(packet.reserve(1), Err(PacketError::NotEmpty { len: 30 }));
    assert_eq!(packet.push(67).unwrap_err(), PacketError::Headroom { bytes: 67, room: 66 });
    packet.linearize().unwrap();
    assert_eq!((packet.len(), packet.tailroom(), packet.is_linear()), (30, room - 20, true));
    for error in [packet.push(usize::MAX).unwrap_err(), packet.put(usize::MAX).unwrap_err()] {
        assert!(error.to_string().contains(&usize::MAX.to_string()));
    }
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_and_packets_turn_into_each_other_without_copying() {
    use bytes::Bytes;
    let memory = Watched::new();
    let mut cache = PollCache::with_source(memory.source().share());
    let original = packet(&mut cache, &[8; 100]);
    let first = original.data().as_ptr();
    let bytes = Bytes::from(original);
    drop(cache);
    assert_eq!((bytes.as_ptr(), bytes.len(), memory.blocks()), (first, 100, 1));
    let mut packet = PacketBuf::from(bytes.slice(10..));
    assert_eq!((packet.pull(5).unwrap().len(), packet.data_mut()), (5, None));
    let bytes_again = Bytes::from(packet);
    assert_eq!((bytes_again.as_ptr(), bytes_again.len()), (first.wrapping_add(15), 85));
    drop(bytes);
    assert_eq!(memory.blocks(), 1);
    std::thread::spawn(move || drop(bytes_again)).join().unwrap();
    assert_eq!(memory.blocks(), 0);

    let mut parts = PacketBuf::from(Bytes::from_static(b"not "));
    parts.attach(Bytes::from_static(b"linear"));
    assert_eq!(Bytes::from(parts), "not linear");
    assert!(Bytes::from(PacketBuf::new(vec![0; 10], 5)).is_empty());
}

#[test]
fn packets_are_sent_and_shared_as_bytes_are() {
    fn sent<T: Send + Sync>() {}
    sent::<PacketBuf>();
    sent::<Piece>();
    let packet = Arc::new(PacketBuf::new(vec![3; 400], 0));
    let other = Arc::clone(&packet);
    std::thread::spawn(move || assert_eq!(other.len(), 0)).join().unwrap();
    let frag: Frag = PollCache::new().alloc(10, Align::BYTE).unwrap();
    assert_eq!(PacketBuf::new(frag, 4).headroom(), 4, "too short for a trailer");
}
