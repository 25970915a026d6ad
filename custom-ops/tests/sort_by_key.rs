//! Sorts by key and prefix sums against plain loops; `tests/parity` holds the GPU to the same.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{prefix_sum, prefix_sum_reference, sort_by_key, sort_by_key_reference};

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
fn entries_are_in_the_order_of_their_keys_and_then_their_own() -> Result<()> {
    for (n, n_keys) in [(0, 3), (1, 1), (5, 2), (33, 1000), (4097, 7), (70_001, 300), (200_000, 70_001)] {
        let keys = keys(n, n_keys)?;
        let (got, want) = (sort_by_key(&keys, n_keys)?, sort_by_key_reference(&keys, n_keys)?);
        for (what, got, want) in [("offsets", got.offsets, want.offsets), ("order", got.order, want.order)] {
            assert!(got.to_vec1::<u32>()? == want.to_vec1::<u32>()?, "{what} of {n} entries, {n_keys} keys");
        }
    }
    Ok(())
}

#[test]
fn an_offset_view_of_keys_is_sorted_by_its_own_places() -> Result<()> {
    let all = keys(5001, 40)?;
    let view = all.narrow(0, 7, 4000)?;
    let (got, want) = (sort_by_key(&view, 40)?, sort_by_key(&view.copy()?, 40)?);
    assert_eq!(got.order.to_vec1::<u32>()?, want.order.to_vec1::<u32>()?);
    Ok(())
}

#[test]
fn sums_are_of_all_numbers_before() -> Result<()> {
    for n in [0, 1, 31, 4096, 4097, 10_001] {
        let x = Tensor::from_vec((0..n).map(|i| (i * 7919 % 1000) as u32).collect::<Vec<_>>(), n, &CPU)?;
        let (got, want) = (prefix_sum(&x)?, prefix_sum_reference(&x)?);
        assert_eq!(got.sums.to_vec1::<u32>()?, want.sums.to_vec1::<u32>()?, "{n} numbers");
        assert_eq!(got.total()?, want.total()?, "{n} numbers");
    }
    Ok(())
}

#[test]
fn a_total_that_does_not_fit_is_told() -> Result<()> {
    let x = Tensor::new(&[u32::MAX, 1, 5], &CPU)?;
    let sums = prefix_sum(&x)?;
    assert_eq!(sums.total.to_vec1::<i64>()?, [(1 << 32) + 5]);
    let error = sums.total().expect_err("accepted").to_string();
    assert_eq!(
        error.lines().next(),
        Some("prefix_sum: the sum of all numbers must be below 2^32, got 4294967301")
    );
    Ok(())
}

#[test]
fn keys_of_another_kind_are_refused() -> Result<()> {
    let says = |keys: Tensor, n_keys, want: &str| {
        let message = sort_by_key(&keys, n_keys).expect_err("accepted").to_string();
        assert_eq!(message.lines().next(), Some(want));
    };
    says(Tensor::zeros(3, DType::F32, &CPU)?, 3, "sort_by_key: keys must be u32, got F32");
    says(Tensor::zeros((2, 3), DType::U32, &CPU)?, 3, "sort_by_key: keys must have shape [6], got [2, 3]");
    says(
        Tensor::zeros(3, DType::U32, &CPU)?,
        0,
        "sort_by_key: the number of different keys must be in 1..2^32 - 1, got 0",
    );
    Ok(())
}
