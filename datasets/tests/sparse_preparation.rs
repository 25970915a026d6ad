//! Preparation of sparse rows gives what that of dense ones does; and principal components by
//! products alone are those of all eigenvectors.
use crate::common::*;
use candle::{DType, Device::Cpu, Tensor};
use chandlery_datasets::preparation::{Moments, Pca, Preparation, StepConfig};
use chandlery_datasets::{Source, SparseBlock, Split};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use std::sync::Arc;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Counts of `n` rows in a few groups, each of which has columns of its own; column 3 is everywhere
/// and far from 0, column 5 is empty.
fn counts(n: usize, d: usize, seed: u64) -> BoxResult<Vec<f32>> {
    let draws = uniform((n, d), &Cpu, Philox::new(seed, 0))?.to_vec2::<f32>()?;
    let mut rows = Vec::with_capacity(n * d);
    for (i, row) in draws.iter().enumerate() {
        for (j, &u) in row.iter().enumerate() {
            let (group, share) = (i % 7, 0.5 / (1. + (j % 11) as f32));
            let strong = j % 7 == group;
            rows.push(match j {
                3 => 5000. + (10. * u).round(),
                5 => 0.,
                _ if strong && u < 2. * share => (1. + 30. * u / (1. + group as f32)).round(),
                _ if u < share / 3. => (1. + 10. * u).round(),
                _ => 0.,
            });
        }
    }
    Ok(rows)
}

/// Sparse rows in memory.
#[derive(Debug)]
struct Entries(SparseBlock);

impl Source for Entries {
    fn n_samples(&self) -> usize {
        self.0.n_samples()
    }
    fn n_features(&self) -> usize {
        self.0.n_features()
    }
    fn row_type(&self) -> chandlery_datasets::RowType {
        chandlery_datasets::RowType::F32
    }
    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> chandlery_datasets::Result<()> {
        out.fill(0);
        for (out, &i) in out.chunks_exact_mut(4 * self.n_features()).zip(indices) {
            let (columns, values) = self.0.row(i as usize);
            for (&j, x) in columns.iter().zip(values) {
                out[4 * j as usize..][..4].copy_from_slice(&x.to_ne_bytes());
            }
        }
        Ok(())
    }
    fn read_entries(&self, indices: &[u32]) -> chandlery_datasets::Result<Option<SparseBlock>> {
        let (mut offsets, mut columns, mut values) = (vec![0], vec![], vec![]);
        for &i in indices {
            let (of_row, x) = self.0.row(i as usize);
            columns.extend_from_slice(of_row);
            values.extend_from_slice(x);
            offsets.push(columns.len());
        }
        SparseBlock::new(self.n_features(), offsets, columns, values).map(Some)
    }
    fn is_sparse(&self) -> bool {
        true
    }
}

/// The same rows dense and sparse.
fn both(rows: &[f32], d: usize) -> BoxResult<[Split; 2]> {
    let (mut offsets, mut columns, mut values) = (vec![0], vec![], vec![]);
    for row in rows.chunks(d) {
        for (j, &x) in (0u32..).zip(row).filter(|(_, x)| **x != 0.) {
            columns.push(j);
            values.push(x);
        }
        offsets.push(columns.len());
    }
    let block = SparseBlock::new(d, offsets, columns, values)?;
    Ok([Split::from_f32(rows.to_vec(), d, None)?, Split::new(Arc::new(Entries(block)), None)?])
}

fn steps(text: &str) -> BoxResult<Vec<StepConfig>> {
    Ok(text.split(',').map(str::parse).collect::<Result<_, _>>()?)
}

/// The largest difference, in the largest value.
fn apart(a: &Tensor, b: &Tensor) -> BoxResult<f64> {
    assert_eq!(a.dims(), b.dims());
    let flat = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (a, b) = (flat(a)?, flat(b)?);
    let largest = a.iter().fold(0f64, |most, x| most.max(x.abs()));
    let most =
        a.iter().zip(&b).fold(0f64, |most, (a, b)| if (a - b).abs() <= most { most } else { (a - b).abs() });
    Ok(most / largest)
}

#[test]
fn steps_of_each_value_do_to_entries_what_they_do_to_dense_rows() -> TestResult {
    let (n, d) = (2100, 40);
    let [dense, sparse] = both(&counts(n, d, 1)?, d)?;
    for text in [
        "log1p",
        "scale=0.3",
        "center",
        "standardise",
        "minmax",
        "robust",
        "log1p,standardise",
        "scale=2,scale=0.1,log1p,center,scale=3",
        "unit-variance,minmax,robust",
        "log1p,row-mean",
        "row-sum,log1p,standardise",
        "scale=3,row-sum=100,log1p,pca=6",
        "center,row-sum=1",
        "standardise,contrast=0.1",
        "log1p,pca=7,standardise",
        "center,whiten=5",
    ] {
        let steps = steps(text)?;
        let (want, got) = (Preparation::fit(&dense, &steps, 3)?, Preparation::fit(&sparse, &steps, 3)?);
        let want = want.apply(&dense.raw(&Cpu)?)?;
        let got = got.apply_split(&sparse, &Cpu)?;
        // f32 of numbers that were fitted in another order of sums.
        let apart = apart(&want, &got)?;
        assert!(apart < 2e-5, "{text}: {apart}");
        let through_dense = Preparation::fit(&dense, &steps, 3)?.apply_split(&dense, &Cpu)?;
        assert_eq!(through_dense.to_vec2::<f32>()?, want.to_vec2::<f32>()?, "{text}");
    }
    Ok(())
}

#[test]
fn the_magnitudes_of_a_row_sum_to_the_total_and_zeros_stay() -> TestResult {
    let [dense, sparse] = both(&[1., 0., -3., 0., 0., 0., 2., 2., 0.], 3)?;
    let want = [[2.5, 0., -7.5], [0., 0., 0.], [5., 5., 0.]];
    for split in [&dense, &sparse] {
        let preparation = Preparation::fit(split, &steps("row-sum=10")?, 0)?;
        assert_eq!(preparation.apply_split(split, &Cpu)?.to_vec2::<f32>()?, want);
        let written = serde_json::to_string(&preparation)?;
        assert_eq!(serde_json::from_str::<Preparation>(&written)?, preparation);
    }
    let text = |text: &str| text.parse::<StepConfig>().map(|step| step.to_string());
    assert_eq!(text("row-sum"), Ok("row-sum=10000".to_owned()));
    assert!(text("row-sum=0").is_err() && text("row-sum=inf").is_err());
    Ok(())
}

#[test]
fn principal_components_of_sparse_rows_are_those_of_dense_ones() -> TestResult {
    let (n, d, k) = (900, 420, 12);
    let [dense, sparse] = both(&counts(n, d, 2)?, d)?;
    let steps = steps("log1p,standardise,pca=12")?;
    let want = Pca::fit(&Preparation::fit(&dense, &steps[..2], 0)?.apply(&dense.raw(&Cpu)?)?, None)?;
    let fitted = Preparation::fit(&sparse, &steps, 0)?;
    let tensors = fitted.tensors()?;
    let named = |name: &str| tensors.get(&format!("preparation.2.{name}")).cloned().ok_or("no such tensor");
    // Residuals of 1e-5 are errors of some 1e-10 over the gaps.
    assert!(apart(&want.variance().narrow(0, 0, k)?, &named("variance")?)? < 1e-6);
    let total = named("total_variance")?.to_vec1::<f64>()?[0];
    let want_total = want.variance().sum_all()?.to_scalar::<f64>()?;
    assert!((total / want_total - 1.).abs() < 1e-7, "{total} {want_total}");
    // The six directions between groups stand apart from the others, so that each is one.
    let strong = |t: &Tensor| t.narrow(0, 0, 6);
    assert!(apart(&strong(want.components())?, &strong(&named("components")?)?)? < 1e-4);
    Ok(())
}

#[test]
fn directions_of_wide_dense_rows_are_found_by_passes() -> TestResult {
    let (n, d) = (60, 4200);
    let rows: Vec<f32> = counts(n, d, 7)?.into_iter().map(|x| x + 1000.).collect();
    let [dense, _] = both(&rows, d)?;
    let fitted = Preparation::fit(&dense, &steps("pca=6")?, 0)?;
    // The products of the centred rows with each other have the same eigenvalues, 60 of them.
    let x = dense.raw(&Cpu)?.to_dtype(DType::F64)?;
    let x = x.broadcast_sub(&x.mean_keepdim(0)?)?;
    let gram = (x.matmul(&x.t()?)? / (n - 1) as f64)?;
    let tensors = fitted.tensors()?;
    let (directions, variance) = (&tensors["preparation.0.components"], &tensors["preparation.0.variance"]);
    let coordinates = x.matmul(&directions.t()?)?;
    let products = (gram.matmul(&coordinates)? - coordinates.broadcast_mul(variance)?)?;
    assert!(apart(&coordinates, &(products / variance.to_vec1::<f64>()?[0] + coordinates.clone())?)? < 1e-4);
    let total = gram.to_vec2::<f64>()?.iter().enumerate().map(|(i, row)| row[i]).sum::<f64>();
    assert!((tensors["preparation.0.total_variance"].to_vec1::<f64>()?[0] / total - 1.).abs() < 1e-9);
    // They are the largest: what is left has none above the last.
    let left = (x.clone() - coordinates.matmul(directions)?)?;
    let mut v = left.narrow(0, 0, 1)?;
    for _ in 0..200 {
        v = left.matmul(&v.t()?)?.t()?.matmul(&left)?;
        let norm = v.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt();
        v = (v / norm)?;
    }
    let next = left.matmul(&v.t()?)?.sqr()?.sum_all()?.to_scalar::<f64>()? / (n - 1) as f64;
    let last = variance.to_vec1::<f64>()?[5];
    assert!(next <= last * (1. + 1e-6), "{next} {last}");
    Ok(())
}

#[test]
fn a_column_far_from_0_that_every_row_has_keeps_its_variance() -> TestResult {
    let (n, d) = (500, 300);
    let mut rows = counts(n, d, 4)?;
    for (i, row) in rows.chunks_mut(d).enumerate() {
        // The only variance, of 1/4, at 1e7.
        row.iter_mut().for_each(|x| *x = 0.);
        row[17] = 1e7 + (i % 2) as f32;
    }
    let [_, sparse] = both(&rows, d)?;
    let fitted = Preparation::fit(&sparse, &steps("pca=1")?, 0)?;
    let variance = fitted.tensors()?["preparation.0.variance"].to_vec1::<f64>()?[0];
    let want = 0.25 * n as f64 / (n - 1) as f64;
    assert!((variance / want - 1.).abs() < 1e-9, "{variance} {want}");
    Ok(())
}

#[test]
fn few_components_are_those_of_all_eigenvectors_with_equal_variances_too() -> TestResult {
    let d = 360;
    let noise = uniform((700, d), &Cpu, Philox::new(5, 0))?;
    let scales: Vec<f32> = (0..d).map(|j| 0.97f32.powi(j as i32)).collect();
    let decaying = noise.broadcast_mul(&Tensor::new(scales, &Cpu)?)?;
    // Each category as often: all variances but one are equal.
    let one_hot: Vec<f32> = (0..720 * d).map(|e| f32::from(u8::from((e / d) % d == e % d))).collect();
    let one_hot = Tensor::from_vec(one_hot, (720, d), &Cpu)?;
    let flat = Tensor::ones((50, d), DType::F32, &Cpu)?;
    for (name, rows) in [("noise", noise), ("decaying", decaying), ("one hot", one_hot), ("flat", flat)] {
        let mut moments = Moments::new(d, &Cpu)?;
        moments.add(&rows)?;
        let (all, few) = (Pca::from_moments(&moments, None)?, Pca::from_moments(&moments, Some(50))?);
        let (want, got) =
            (all.variance().narrow(0, 0, 50)?.to_vec1::<f64>()?, few.variance().to_vec1::<f64>()?);
        for (want, got) in want.iter().zip(&got) {
            assert!(
                (want - got).abs() <= 1e-10 * all.variance().to_vec1::<f64>()?[0].max(1e-10),
                "{name}: {want} {got}"
            );
        }
        assert!((all.explained()? - 1.).abs() < 1e-9 && few.explained()? <= 1.);
        let components = few.components();
        let products = components.matmul(&components.t()?)?;
        assert!(apart(&Tensor::eye(50, DType::F64, &Cpu)?, &products)? < 1e-10, "{name}");
        if name == "decaying" {
            assert!(apart(&all.components().narrow(0, 0, 10)?, &components.narrow(0, 0, 10)?)? < 1e-7);
        }
    }
    Ok(())
}

#[test]
fn a_value_without_a_logarithm_is_named_by_its_place_in_the_source() -> TestResult {
    let mut rows = counts(1500, 30, 6)?;
    rows[1300 * 30 + 8] = -2.;
    let [_, sparse] = both(&rows, 30)?;
    let some = sparse.select(&(100..1500).collect::<Vec<_>>())?;
    for split in [&sparse, &some] {
        let refused = Preparation::fit(split, &steps("log1p")?, 0).map(drop);
        let text = refused.err().ok_or("accepted")?.to_string();
        assert!(text.starts_with("log1p: row 1300, column 8: values must be above -1, got -2"), "{text}");
    }
    Ok(())
}
