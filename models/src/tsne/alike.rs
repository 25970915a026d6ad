//! Which of many are equal.
use rayon::prelude::*;

/// For each of `n` the first that equals it. `hash` gives equal ones one number, and seldom one to
/// others.
pub(super) fn firsts(
    n: u32,
    hash: impl Fn(u32) -> u64 + Sync,
    equal: impl Fn(u32, u32) -> bool + Sync,
) -> Vec<u32> {
    let mut hashes: Vec<(u64, u32)> = (0..n).into_par_iter().map(|place| (hash(place), place)).collect();
    hashes.par_sort_unstable();
    let grouped = hashes.par_chunk_by(|a, b| a.0 == b.0).flat_map_iter(|alike| {
        // Several have one hash if chance will have it.
        let mut firsts: Vec<u32> = vec![];
        let first = |&(_, place): &(u64, u32)| {
            let known = firsts.iter().copied().find(|&first| equal(first, place));
            let first = known.unwrap_or(place);
            if known.is_none() {
                firsts.push(place);
            }
            (place, first)
        };
        alike.iter().map(first).collect::<Vec<_>>()
    });
    let grouped: Vec<(u32, u32)> = grouped.collect();
    let mut of = vec![0; n as usize];
    grouped.into_iter().for_each(|(place, first)| of[place as usize] = first);
    of
}
