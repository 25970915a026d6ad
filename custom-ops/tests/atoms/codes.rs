//! Lists of the uses of atoms, decoded codes and their figures.
use super::common::{CPU, SHAPES, difference, problem};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{AtomUses, FIGURE_PARTS, SparseCodes, code_figures_, row_squares};

#[test]
fn lists_are_the_places_of_each_atom_in_ascending_order() -> Result<()> {
    // The last has several parts of 64 Ki entries.
    for [m, n, s] in [[1, 1, 1], [6, 4, 3], [500, 17, 5], [70_001, 40, 3]] {
        let words = |stream| (0..(m * s) as u64).map(move |e| Philox::new(3, stream).bits(e));
        let indices: Vec<u32> = words(0).map(|w| w % n as u32).collect();
        let count: Vec<u32> = words(1).take(m).map(|w| w % (s as u32 + 1)).collect();
        let codes = SparseCodes {
            indices: Tensor::from_vec(indices.clone(), (m, s), &CPU)?,
            values: Tensor::zeros((m, s), DType::F32, &CPU)?,
            count: Tensor::from_vec(count.clone(), m, &CPU)?,
            n_atoms: n,
        };
        let uses = AtomUses::of(&codes)?;
        let (offsets, entries) = (uses.offsets().to_vec1::<u32>()?, uses.entries().to_vec1::<u32>()?);
        let mut want = Vec::new();
        for (j, &start) in offsets[..n].iter().enumerate() {
            assert_eq!(start as usize, want.len(), "start of atom {j}, m {m}");
            let used = |&e: &usize| indices[e] as usize == j && e % s < count[e / s] as usize;
            want.extend((0..m * s).filter(used).map(|e| e as u32));
        }
        assert_eq!(offsets[n] as usize, want.len());
        assert_eq!(uses.counts()?.iter().sum::<u32>() as usize, want.len());
        assert!(entries[..want.len()] == want, "m {m}, n {n}, s {s}");
        assert!(entries[want.len()..].iter().all(|&e| e == 0));
    }
    Ok(())
}

#[test]
fn decoded_codes_are_the_dense_product() -> Result<()> {
    for shape in SHAPES {
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
            let (y, d, codes) = problem(shape, dtype)?;
            let got = codes.residual(&y, &d)?;
            let want = (&y - codes.to_dense()?.matmul(&d)?)?;
            // A dozen products of numbers up to about 5.
            let off = difference(&got, &want)?;
            assert!(off < 30. * eps, "{shape:?} {dtype:?}: {off}");
            let want = got.to_dtype(DType::F64)?.sqr()?.sum(1)?;
            let off = difference(&row_squares(&got)?, &want)?;
            assert!(off < 1e-12 * 500., "{shape:?} {dtype:?}: squares differ by {off}");
        }
    }
    Ok(())
}

#[test]
fn figures_are_the_sums_and_the_largest_squares_of_their_parts() -> Result<()> {
    for shape in [[5, 3, 2, 1], [301, 50, 20, 4], [2500, 9, 130, 3]] {
        let (y, d, codes) = problem(shape, DType::F32)?;
        let n = shape[1];
        let (uses, error) = (AtomUses::of(&codes)?, codes.residual(&y, &d)?);
        let figures = Tensor::full(f64::NAN, 2 * FIGURE_PARTS + n + 1, &CPU)?;
        let squares = code_figures_(&figures, &error, &y, &uses)?;
        assert_eq!(difference(&squares, &row_squares(&error)?)?, 0.);
        let (figures, squares) = (figures.to_vec1::<f64>()?, squares.to_vec1::<f64>()?);
        let sum: f64 = figures[..FIGURE_PARTS].iter().sum();
        assert!((sum / squares.iter().sum::<f64>() - 1.).abs() < 1e-12, "{shape:?}");
        let largest = row_squares(&y)?.max(0)?.to_scalar::<f64>()?;
        let of_parts = figures[FIGURE_PARTS..2 * FIGURE_PARTS].iter().fold(0., |a: f64, &b| a.max(b));
        assert_eq!(of_parts, largest, "{shape:?}");
        let offsets: Vec<f64> = uses.offsets().to_vec1::<u32>()?.into_iter().map(f64::from).collect();
        assert_eq!(figures[2 * FIGURE_PARTS..], offsets, "{shape:?}");
    }
    Ok(())
}
