use super::{assert_close, correlated, message, values};
use candle::{DType, Device::Cpu, Module, Tensor};
use chandlery_datasets::Result;
use chandlery_datasets::embedded::natural_images;
use chandlery_datasets::patches::PatchSampler;
use chandlery_datasets::preparation::{Moments, Whitening, WhiteningConfig, WhiteningKind, remove_mean};
use std::collections::HashMap;

/// Of rows that went through a whitening and back in f32: rounding of 6e-8 times values up to 10 in
/// length, stretched and shrunk by up to 300 where a direction has little variance.
const ROUND_TRIP: f64 = 2e-5;

const KINDS: [WhiteningKind; 2] = [WhiteningKind::Pca, WhiteningKind::Zca];

fn config(kind: WhiteningKind, epsilon: f64, n_components: Option<usize>) -> WhiteningConfig {
    WhiteningConfig { kind, epsilon, n_components }
}

fn covariance(rows: &Tensor) -> Result<Tensor> {
    let mut moments = Moments::new(rows.dim(1)?, &Cpu)?;
    moments.add(rows)?;
    moments.covariance()
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|i| if i % (n + 1) == 0 { 1. } else { 0. }).collect()
}

fn natural(n: usize, side: usize) -> Result<Tensor> {
    PatchSampler::new(natural_images()?, side, n, 11)?.draw(0..n as u32, &Cpu)
}

#[test]
fn moments_in_parts_are_the_two_pass_moments_of_the_whole() -> Result<()> {
    // Far from 0, where E[x²] - E[x]² would lose eight of its sixteen digits; more rows than a
    // block.
    let rows = correlated(9001, 3, 1).affine(1., 1e4)?;
    let mut moments = Moments::new(3, &Cpu)?;
    for (start, len) in [(0, 1), (1, 700), (701, 8300)] {
        moments.add(&rows.narrow(0, start, len)?)?;
    }
    assert_eq!((moments.n_samples(), moments.n_features()), (9001, 3));

    let x = values(&rows);
    let mean: Vec<f64> = (0..3).map(|j| x.iter().skip(j).step_by(3).sum::<f64>() / 9001.).collect();
    let mut want = vec![0.; 9];
    for row in x.chunks_exact(3) {
        for (ij, c) in want.iter_mut().enumerate() {
            let (i, j) = (ij / 3, ij % 3);
            *c += (row[i] - mean[i]) * (row[j] - mean[j]) / 9000.;
        }
    }
    assert_close("mean", &values(moments.mean()), &mean, 1e-9);
    assert_close("covariance", &values(&moments.covariance()?), &want, 1e-12);
    Ok(())
}

#[test]
fn a_covariance_known_by_hand_is_whitened_as_by_hand() -> Result<()> {
    // ±(a, a) and ±(b, -b): C = 2/3 [[a² + b², a² - b²], [a² - b², a² + b²]] = [[2, 1], [1, 2]], λ
    // = 3 and 1.
    let (a, b) = (2.25f32.sqrt(), 0.75f32.sqrt());
    let rows = Tensor::new(&[[a, a], [-a, -a], [b, -b], [-b, b]], &Cpu)?;
    let half = 0.5f64.sqrt();
    let pca = Whitening::fit(&rows, &config(WhiteningKind::Pca, 0., None))?;
    assert_close("λ", &values(pca.variance()), &[3., 1.], 1e-6);
    // The sign of the second is a tie between its two entries.
    let e = values(pca.components());
    assert_close("e", &[e[0], e[1], e[2] * e[3]], &[half, half, -0.5], 1e-12);
    // E diag(1/√3, 1) Eᵀ.
    let (d, o) = ((1. / 3f64.sqrt() + 1.) / 2., (1. / 3f64.sqrt() - 1.) / 2.);
    let zca = Whitening::fit(&rows, &config(WhiteningKind::Zca, 0., None))?;
    assert_close("ZCA", &values(&zca.matrix()?), &[d, o, o, d], 1e-6);
    Ok(())
}

#[test]
fn without_epsilon_the_covariance_becomes_the_identity() -> Result<()> {
    let n_features = 24;
    let rows = correlated(500, n_features, 2);
    let c = covariance(&rows)?;
    for kind in KINDS {
        let whitening = Whitening::fit(&rows, &config(kind, 0., None))?;
        // In f64, W C Wᵀ. The eigenvalues span a factor of about 10⁴, so that 1e-16 becomes 1e-12;
        // 100 to spare.
        let w = whitening.matrix()?;
        let product = w.matmul(&c)?.matmul(&w.t()?)?;
        assert_close("W C Wᵀ", &values(&product), &identity(n_features), 1e-10);
        // Of the f32 rows themselves: each is rounded by 1e-7 of rows up to 100 times as long as
        // the result.
        let white = whitening.transform(&rows)?;
        assert_close("cov(y)", &values(&covariance(&white)?), &identity(n_features), 1e-5);
        // And it was not the identity before.
        assert!(values(&c).iter().zip(identity(n_features)).any(|(c, i)| (c - i).abs() > 0.3));
    }
    Ok(())
}

#[test]
fn epsilon_damps_each_direction_by_its_formula() -> Result<()> {
    let rows = correlated(400, 10, 3);
    let epsilon = 0.25;
    let whitening = Whitening::fit(&rows, &config(WhiteningKind::Pca, epsilon, None))?;
    let lambda = values(whitening.variance());
    let want: Vec<f64> = identity(10)
        .iter()
        .enumerate()
        .map(|(i, one)| one * lambda[i % 10] / (lambda[i % 10] + epsilon))
        .collect();
    assert_close("cov(y)", &values(&covariance(&whitening.transform(&rows)?)?), &want, 1e-5);
    assert!(lambda.windows(2).all(|pair| pair[0] >= pair[1]), "{lambda:?}");
    assert!(lambda[9] < epsilon && epsilon < lambda[0], "{lambda:?}");
    Ok(())
}

#[test]
fn zca_is_symmetric_and_pca_has_orthogonal_rows() -> Result<()> {
    let rows = remove_mean(&natural(3000, 8)?)?;
    let zca = Whitening::fit(&rows, &WhiteningConfig::default())?;
    let w = zca.matrix()?;
    // Entries reach about 100.
    assert_close("W - Wᵀ", &values(&w), &values(&w.t()?), 1e-11);
    let e = zca.components();
    assert_close("E Eᵀ", &values(&e.matmul(&e.t()?)?), &identity(64), 1e-12);
    for row in values(e).chunks_exact(64) {
        let largest = row.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
        assert!(largest > Some(0.), "{largest:?}");
    }
    Ok(())
}

#[test]
fn inverse_undoes_transform() -> Result<()> {
    for rows in [correlated(300, 12, 4), natural(1000, 8)?] {
        for kind in KINDS {
            let whitening = Whitening::fit(&rows, &config(kind, 1e-5, None))?;
            let white = whitening.transform(&rows)?;
            assert_close("x", &values(&whitening.inverse(&white)?), &values(&rows), ROUND_TRIP);
            let n = rows.dim(1)?;
            let product = whitening.matrix()?.matmul(&whitening.inverse_matrix()?)?;
            assert_close("W V", &values(&product), &identity(n), 1e-11);
            // It does something: whitened rows are not the rows.
            let moved =
                values(&white).iter().zip(values(&rows)).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
            assert!(moved > 0.5, "{moved}");
        }
    }
    Ok(())
}

#[test]
fn patches_without_their_mean_whiten_at_epsilon_zero() -> Result<()> {
    // One direction, that of the mean, has no variance: it must not become infinite.
    let rows = remove_mean(&natural(4000, 6)?)?;
    for kind in KINDS {
        let whitening = Whitening::fit(&rows, &config(kind, 0., None))?;
        let white = whitening.transform(&rows)?;
        let c = covariance(&white)?;
        let trace: f64 = (0..36).map(|i| values(&c)[i * 37]).sum();
        assert_close("trace", &[trace], &[35.], 1e-3);
        // A projection: it is its own square.
        assert_close("C C", &values(&c.matmul(&c)?), &values(&c), 1e-3);
        assert_close("x", &values(&whitening.inverse(&white)?), &values(&rows), ROUND_TRIP);
    }
    Ok(())
}

#[test]
fn rows_without_variance_become_zero() -> Result<()> {
    let rows = Tensor::full(0.3f32, (5, 4), &Cpu)?;
    for kind in KINDS {
        let whitening = Whitening::fit(&rows, &config(kind, 0., None))?;
        assert_eq!(values(&whitening.transform(&rows)?), [0.; 20]);
        let back = whitening.inverse(&whitening.transform(&rows)?)?;
        assert_close("x", &values(&back), &values(&rows), 0.);
    }
    Ok(())
}

#[test]
fn the_loss_of_dropped_components_is_their_variance() -> Result<()> {
    let rows = correlated(600, 10, 5);
    let all = values(Whitening::fit(&rows, &WhiteningConfig::default())?.variance());
    for kind in KINDS {
        for kept in [1, 4, 10] {
            let whitening = Whitening::fit(&rows, &config(kind, 1e-5, Some(kept)))?;
            assert_eq!(whitening.n_components(), kept);
            let white = whitening.transform(&rows)?;
            let width = if kind == WhiteningKind::Pca { kept } else { 10 };
            assert_eq!((white.dims(), whitening.n_outputs()), ([600, width].as_slice(), width));
            let lost = (rows.clone() - whitening.inverse(&white)?)?;
            let loss = values(&lost).iter().map(|v| v * v).sum::<f64>() / 599.;
            assert_close("loss", &[loss], &[all[kept..].iter().sum()], 1e-5);
        }
    }
    Ok(())
}

#[test]
fn zca_of_natural_patches_looks_for_a_pixel_against_its_surround() -> Result<()> {
    let side = 9;
    let rows = remove_mean(&natural(20_000, side)?)?;
    let w = values(&Whitening::fit(&rows, &config(WhiteningKind::Zca, 1e-3, None))?.matrix()?);
    for (line, column) in [(4, 4), (2, 5), (6, 3)] {
        let pixel = line * side + column;
        let filter = &w[pixel * side * side..(pixel + 1) * side * side];
        let centre = filter[pixel];
        let beside = [pixel - 1, pixel + 1, pixel - side, pixel + side].map(|p| filter[p]);
        assert!(beside.iter().all(|b| *b < 0.), "{beside:?}");
        assert!(filter.iter().enumerate().all(|(p, v)| p == pixel || v.abs() < centre / 2.));
    }
    Ok(())
}

#[test]
fn a_stored_whitening_transforms_to_the_same_bits() -> Result<()> {
    let rows = correlated(200, 7, 6);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whitening.safetensors");
    for kind in KINDS {
        for n_components in [None, Some(3)] {
            let fitted = Whitening::fit(&rows, &config(kind, 0.01, n_components))?;
            let mut tensors = fitted.tensors("whitening")?;
            tensors.insert("weight".to_owned(), rows.clone());
            candle::safetensors::save(&tensors, &path)?;
            let loaded = candle::safetensors::load(&path, &Cpu)?;
            let loaded = Whitening::from_tensors(&loaded, "whitening", &Cpu)?;
            assert_eq!((loaded.kind(), loaded.epsilon()), (kind, 0.01));
            let white = fitted.transform(&rows)?;
            assert_eq!(values(&loaded.transform(&rows)?), values(&white));
            assert_eq!(values(&loaded.inverse(&white)?), values(&fitted.inverse(&white)?));
            assert_eq!(values(&loaded.forward(&rows)?), values(&white));
            assert_eq!(values(&loaded.to_device(&Cpu)?.transform(&rows)?), values(&white));
        }
    }
    Ok(())
}

#[test]
fn whitening_says_what_is_wrong() -> Result<()> {
    let rows = correlated(20, 4, 7);
    let fit = |epsilon, n| Whitening::fit(&rows, &config(WhiteningKind::Zca, epsilon, n));
    for (bad, name) in [(-1e-9, "-0.000000001"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        assert_eq!(
            message(fit(bad, None)),
            format!("WhiteningConfig: epsilon must be a finite number of at least 0, got {name}")
        );
    }
    for bad in [0, 5] {
        assert_eq!(
            message(fit(0., Some(bad))),
            format!("WhiteningConfig: n_components must be between 1 and n_features = 4, got {bad}")
        );
    }
    let default = WhiteningConfig::default();
    assert_eq!(
        message(Whitening::fit(&rows.narrow(0, 0, 1)?, &default)),
        "Moments: a covariance needs at least 2 rows, got 1"
    );
    let mut broken = rows.to_vec2::<f32>()?;
    broken[17][2] = f32::NEG_INFINITY;
    broken[19][0] = f32::NAN;
    assert_eq!(
        message(Whitening::fit(&Tensor::new(broken, &Cpu)?, &default)),
        "Moments.add: row 17, column 2 is -inf; replace or drop such values and save again"
    );
    assert_eq!(
        message(Whitening::fit(&rows.to_dtype(DType::F64)?, &default)),
        "Whitening::fit: rows must be f32 of shape [n_samples, n_features], got F64 of shape [20, 4]"
    );
    let pca = Whitening::fit(&rows, &config(WhiteningKind::Pca, 0., Some(3)))?;
    assert_eq!(
        message(pca.transform(&rows.narrow(1, 0, 3)?)),
        "Whitening.transform: rows must be f32 or f64 of shape [n_samples, 4], got F32 of shape [20, 3]"
    );
    assert_eq!(
        message(pca.inverse(&rows)),
        "Whitening.inverse: whitened must be f32 or f64 of shape [n_samples, 3], got F32 of shape [20, 4]"
    );
    Ok(())
}

#[test]
fn a_stored_whitening_that_does_not_fit_is_refused() -> Result<()> {
    let good = Whitening::fit(&correlated(20, 4, 8), &WhiteningConfig::default())?.tensors("w")?;
    let with = |name: &str, tensor: Tensor| -> String {
        let mut tensors = good.clone();
        tensors.insert(name.to_owned(), tensor);
        message(Whitening::from_tensors(&tensors, "w", &Cpu))
    };
    let end = "; load what `tensors` gave, unchanged";
    assert_eq!(
        with("w.components", Tensor::zeros((4, 5), DType::F64, &Cpu)?),
        format!("w.components: must be F64 of shape [any, 4], got F64 of shape [4, 5]{end}")
    );
    assert_eq!(
        with("w.mean", Tensor::zeros(4, DType::F32, &Cpu)?),
        format!("w.mean: must be F64 of shape [any], got F32 of shape [4]{end}")
    );
    assert_eq!(
        with("w.variance", Tensor::new(&[1., 1., f64::NAN, 1.], &Cpu)?),
        format!("w.variance: must be finite, holds NaN{end}")
    );
    assert_eq!(
        with("w.epsilon", Tensor::new(&[-1f64], &Cpu)?),
        format!("w.epsilon: must be at least 0, got [-1.0]{end}")
    );
    assert_eq!(
        message(Whitening::from_tensors(&HashMap::new(), "w", &Cpu)),
        "w: no tensor 'w.mean'; there are: none"
    );
    Ok(())
}
