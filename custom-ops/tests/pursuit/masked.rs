//! Signals with missing samples.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{ErrorTarget, Pursuit, bomp, bomp_masked, bomp_masked_reference, omp_reference};
use chandlery_ops::core::uniform;

/// 1 with probability `share`.
fn mask(m: usize, p: usize, share: f64) -> Result<Tensor> {
    uniform((m, p), &Cpu, Philox::new(12, 0))?.lt(share)?.to_dtype(DType::U8)
}

#[test]
fn codes_are_those_of_the_observed_samples() -> Result<()> {
    for (m, n, p, s) in [(1, 9, 20, 3), (70, 33, 40, 5), (130, 64, 24, 4), (9, 200, 64, 10)] {
        let (signals, dictionary, mask) = (gaussian(m, p, 1)?, gaussian(n, p, 2)?, mask(m, p, 0.6)?);
        let nonnegative = Pursuit { nonnegative: true, ..Pursuit::new(s) };
        let target = Pursuit { error: Some(ErrorTarget::Relative(0.5)), ..Pursuit::new(s) };
        for pursuit in [Pursuit::new(s), nonnegative, target] {
            let got = bomp_masked(&signals, &mask, &dictionary, &pursuit)?;
            let want = bomp_masked_reference(&signals, &mask, &dictionary, &pursuit)?;
            // Norms and products of the observed part come from sums of the same length.
            assert_same(&format!("{m}x{n}x{p}x{s} {pursuit:?}"), &got, &want, 1e-9)?;
        }
        // Each signal on its own, as one would by hand.
        let row = 0;
        let seen: Vec<u32> = mask
            .get(row)?
            .to_vec1::<u8>()?
            .iter()
            .enumerate()
            .filter(|(_, m)| **m != 0)
            .map(|(t, _)| t as u32)
            .collect();
        let seen = Tensor::new(seen.as_slice(), &Cpu)?;
        let cut = |x: &Tensor| x.index_select(&seen, 1);
        let by_hand =
            omp_reference(&cut(&signals.narrow(0, row, 1)?)?, &cut(&dictionary)?, &Pursuit::new(s))?;
        let first = bomp_masked(
            &signals.narrow(0, row, 1)?,
            &mask.narrow(0, row, 1)?,
            &dictionary,
            &Pursuit::new(s),
        )?;
        assert_same(&format!("{m}x{n}x{p}x{s} by hand"), &first, &by_hand, 1e-9)?;
    }
    Ok(())
}

#[test]
fn a_mask_without_holes_changes_nothing() -> Result<()> {
    let (signals, dictionary) = (gaussian(100, 30, 3)?, gaussian(60, 30, 4)?);
    let full = Tensor::ones((100, 30), DType::U8, &Cpu)?;
    let got = bomp_masked(&signals, &full, &dictionary, &Pursuit::new(6))?;
    assert_same("full", &got, &bomp(&signals, &dictionary, &Pursuit::new(6))?, 1e-9)
}

#[test]
fn missing_samples_are_never_looked_at_and_come_back() -> Result<()> {
    // Three atoms of 40 and two thirds of 48 samples: the code is found and gives the rest.
    for dtype in [DType::F32, DType::F64] {
        let (m, n, p) = (50, 40, 48);
        let dictionary = gaussian(n, p, 5)?.to_dtype(dtype)?;
        let mut dense = vec![0f64; m * n];
        for row in 0..m {
            for k in 0..3 {
                dense[row * n + (row * 7 + k * 11) % n] = [2., -1.5, 1.][k];
            }
        }
        let signals = Tensor::from_vec(dense, (m, n), &Cpu)?.to_dtype(dtype)?.matmul(&dictionary)?;
        let mask = mask(m, p, 0.67)?;
        let holes = Tensor::full(f64::NAN, (m, p), &Cpu)?.to_dtype(dtype)?;
        let damaged = mask.where_cond(&signals, &holes)?;
        let codes = bomp_masked(&damaged, &mask, &dictionary, &Pursuit::new(3))?;
        let left = residual_norms(&codes, &signals, &dictionary)?;
        // OMP finds nearly all such supports, though it is no proof; a miss leaves about a third of
        // the signal.
        let found = left.iter().zip(norms(&signals)?).filter(|(r, y)| **r < 1e-5 * y).count();
        assert!(found >= 45, "{dtype:?}: {found} of {m} signals came back");
    }
    Ok(())
}

#[test]
fn a_signal_without_observed_samples_has_an_empty_code() -> Result<()> {
    let signals = Tensor::full(f32::NAN, (3, 8), &Cpu)?;
    let mask = Tensor::zeros((3, 8), DType::U8, &Cpu)?;
    let dictionary = gaussian(5, 8, 6)?.to_dtype(DType::F32)?;
    let codes = bomp_masked(&signals, &mask, &dictionary, &Pursuit::new(2))?;
    assert_eq!(codes.count.to_vec1::<u32>()?, [0; 3]);
    assert_eq!(codes.values.to_vec2::<f32>()?, [[0.; 2]; 3]);
    Ok(())
}

#[test]
fn an_atom_that_only_missing_samples_show_is_never_chosen() -> Result<()> {
    // Atom 0 lives where nothing is observed.
    let dictionary = Tensor::new(&[[1f64, 0., 0., 0.], [0., 1., 1., 0.], [0., 0., 1., 1.]], &Cpu)?;
    let signals = Tensor::new(&[[9f64, 1., 2., 1.]], &Cpu)?;
    let mask = Tensor::new(&[[0u8, 1, 1, 1]], &Cpu)?;
    let codes = bomp_masked(&signals, &mask, &dictionary, &Pursuit::new(3))?;
    assert_eq!(supports(&codes)?, [[1, 2]]);
    // 1·[1 1 0] + 1·[0 1 1] = [1 2 1]
    assert_same("", &codes, &codes, 0.)?;
    let values = codes.values.to_vec2::<f64>()?;
    assert!((values[0][0] - 1.).abs() < 1e-12 && (values[0][1] - 1.).abs() < 1e-12, "{values:?}");
    Ok(())
}
