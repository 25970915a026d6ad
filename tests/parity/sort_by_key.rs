//! Sorts by key and prefix sums: the same numbers on every device.
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{prefix_sum, sort_by_key, sort_by_key_reference};
use chandlery_tests::devices;

const CPU: Device = Device::Cpu;

/// Keys up to an eighth beyond `n_keys`, and some that are no key at all.
fn keys(n: usize, n_keys: usize) -> Result<Tensor> {
    let most = n_keys as u64 + n_keys as u64 / 8 + 1;
    let key = |e: usize| {
        let word = u64::from(Philox::new(1, n_keys as u64).bits(e as u64));
        if word % 17 == 3 { u32::MAX } else { ((word * most) >> 32) as u32 }
    };
    Tensor::from_vec((0..n).map(key).collect::<Vec<_>>(), n, &CPU)
}

#[test]
fn entries_are_in_the_order_of_their_keys_on_every_device() -> Result<()> {
    // Around a warp; around what one block sorts by itself (16,384 entries of 512 keys); around a
    // tile of 4096 and several of the prefix sum's; one digit, two and three; more keys than
    // entries.
    for (n, n_keys) in [
        (1, 1),
        (31, 2),
        (1025, 512),
        (16_384, 512),
        (16_385, 512),
        (33, 513),
        (4096, 1024),
        (4097, 1025),
        (70_001, 300),
        (50, 1 << 20),
        (300_001, 1_000_000),
        (100_000, 3_000_000),
    ] {
        let keys = keys(n, n_keys)?;
        let want = sort_by_key_reference(&keys, n_keys)?;
        for device in devices()? {
            let got = sort_by_key(&keys.to_device(&device)?, n_keys)?;
            for (what, got, want) in
                [("offsets", got.offsets, &want.offsets), ("order", got.order, &want.order)]
            {
                assert!(
                    got.to_vec1::<u32>()? == want.to_vec1::<u32>()?,
                    "{what} of {n} entries, {n_keys} keys on {:?}",
                    device.location()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn prefix_sums_are_those_of_the_cpu() -> Result<()> {
    // Around the 4096 numbers of a tile and the 1024 tiles that are scanned at once; the last sums
    // beyond 2^32.
    for (n, most) in [(1, 9), (33, 9), (4095, 9), (4096, 9), (4097, 1000), (100_003, 1000), (4_300_000, 5000)]
    {
        let x = (0..n).map(|i| (i as u64 * 7919 % most) as u32).collect::<Vec<_>>();
        let x = Tensor::from_vec(x, n, &CPU)?;
        let want = prefix_sum(&x)?;
        for device in devices()? {
            let got = prefix_sum(&x.to_device(&device)?)?;
            let what = format!("{n} numbers on {:?}", device.location());
            assert!(got.sums.to_vec1::<u32>()? == want.sums.to_vec1::<u32>()?, "{what}");
            assert_eq!(got.total.to_vec1::<i64>()?, want.total.to_vec1::<i64>()?, "{what}");
        }
    }
    Ok(())
}
