//! Measures are those of plain loops in f64, for rows and layouts of any scale.
use super::CPU;
use candle::{DType, Result, Tensor};
use chandlery::evaluation::layout::Measures;
use chandlery::tsne::measure::{Estimate, TrueDistances};
use chandlery::tsne::{Method, Metric, TsneConfig, TsneTrainer, measure};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{
    knn, knn_reference, layout_divergence_reference, perplexity_search, perplexity_search_reference,
    repulsion_reference, symmetrize, symmetrize_reference,
};
use std::ops::ControlFlow;

/// The figures have four digits.
const FOUR_DIGITS: f64 = 5e-5;

pub(super) fn f64s(rows: &Tensor) -> Result<Vec<Vec<f64>>> {
    rows.to_dtype(DType::F64)?.to_vec2()
}

pub(super) fn distance(a: &[f64], b: &[f64], metric: Metric) -> f64 {
    let pairs = || a.iter().zip(b);
    match metric {
        Metric::Euclidean => pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt(),
        Metric::Manhattan => pairs().map(|(a, b)| (a - b).abs()).sum(),
        Metric::Chebyshev => pairs().map(|(a, b)| (a - b).abs()).fold(0., f64::max),
        Metric::Hamming => pairs().filter(|(a, b)| a != b).count() as f64 / a.len() as f64,
        Metric::Jaccard => {
            let in_one = pairs().filter(|&(&a, &b)| (a != 0.) != (b != 0.)).count() as f64;
            in_one / pairs().filter(|&(&a, &b)| a != 0. || b != 0.).count().max(1) as f64
        }
        Metric::Cosine => {
            // Half the square of the difference of unit vectors is 1 less the cosine, and exact for
            // small angles too.
            let length = |a: &[f64]| a.iter().map(|a| a * a).sum::<f64>().sqrt();
            let (of_a, of_b) = (length(a), length(b));
            if of_a * of_b == 0. {
                return 1.;
            }
            0.5 * pairs().map(|(a, b)| (a / of_a - b / of_b).powi(2)).sum::<f64>()
        }
        Metric::Correlation => {
            let centred = |a: &[f64]| -> Vec<f64> {
                a.iter().map(|x| x - a.iter().sum::<f64>() / a.len() as f64).collect()
            };
            distance(&centred(a), &centred(b), Metric::Cosine)
        }
    }
}

/// How many rows are nearer to row `i` than row `j` is, and how many, it included, are as far.
fn rank(all: &[Vec<f64>], i: usize, j: usize, metric: Metric) -> (f64, f64) {
    let d = distance(&all[i], &all[j], metric);
    let (mut nearer, mut as_far) = (0., 0.);
    for other in (0..all.len()).filter(|&other| other != i) {
        let e = distance(&all[i], &all[other], metric);
        // What 1 less a cosine does not tell apart in f64 is equally far.
        let is_angle = matches!(metric, Metric::Cosine | Metric::Correlation);
        let blunt = if is_angle { 4. * f64::EPSILON } else { 0. };
        if (e - d).abs() <= 16. * f64::EPSILON * d + blunt {
            as_far += 1.;
        } else if e < d {
            nearer += 1.;
        }
    }
    (nearer, as_far)
}

/// The nearest points of each.
pub(super) fn nearest(points: &[Vec<f64>], own: &[usize], k: usize) -> Vec<Vec<usize>> {
    let of = |i: usize| {
        let mut others: Vec<usize> = (0..points.len()).filter(|&j| j != i).collect();
        let d = |j: usize| distance(&points[i], &points[j], Metric::Euclidean);
        others.sort_by(|&a, &b| d(a).total_cmp(&d(b)).then(a.cmp(&b)));
        others.truncate(k);
        others
    };
    own.iter().map(|&i| of(i)).collect()
}

/// What each row adds to trustworthiness and recall, which are the means of these.
fn of_rows(rows: &Tensor, layout: &Tensor, k: usize, metric: Metric) -> Result<Vec<[f64; 2]>> {
    let (rows, points) = (f64s(rows)?, f64s(layout)?);
    let (n, size) = (rows.len() as f64, k as f64);
    let of_row = |(i, near): (usize, &Vec<usize>)| {
        let (mut excess, mut kept) = (0., 0.);
        for &j in near {
            let (nearer, as_far) = rank(&rows, i, j, metric);
            excess += (nearer + (as_far + 1.) / 2. - size).max(0.);
            kept += ((size - nearer) / as_far).clamp(0., 1.);
        }
        [1. - 2. * excess / (size * (2. * n - 3. * size - 1.)), kept / size]
    };
    let all: Vec<usize> = (0..points.len()).collect();
    Ok(nearest(&points, &all, k).iter().enumerate().map(of_row).collect())
}

/// Trustworthiness and recall.
fn figures(rows: &Tensor, layout: &Tensor, k: usize, metric: Metric) -> Result<(f64, f64)> {
    let each = of_rows(rows, layout, k, metric)?;
    let mean = |of: usize| each.iter().map(|row| row[of]).sum::<f64>() / each.len() as f64;
    Ok((mean(0), mean(1)))
}

/// The mean of `each` over `m` evenly spaced ones, and half of the width of the 95 % interval.
fn sampled(each: &[f64], m: usize) -> (f64, f64) {
    let (n, picks): (_, Vec<f64>) = (each.len(), (0..m).map(|i| each[i * each.len() / m]).collect());
    let mean = picks.iter().sum::<f64>() / m as f64;
    let variance = picks.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (m - 1) as f64;
    (mean, 1.96 * (variance / m as f64 * (1. - m as f64 / n as f64)).sqrt())
}

fn noise(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    normal((n, d), &CPU, Philox::new(71, stream))
}

/// Rows on which f32 goes wrong.
fn nasty(n: usize, d: usize) -> Result<Vec<(&'static str, Tensor)>> {
    let plain = noise(n, d, 0)?;
    let half = n / 2;
    let group = Tensor::arange(0u32, n as u32, &CPU)?.ge(half as u32)?.to_dtype(DType::F32)?.unsqueeze(1)?;
    let column = Tensor::arange(0u32, d as u32, &CPU)?.eq(1u32)?.to_dtype(DType::F32)?.unsqueeze(0)?;
    let outlier = Tensor::arange(0u32, n as u32, &CPU)?.eq(3u32)?.to_dtype(DType::F32)?.unsqueeze(1)?;
    let whole = (&plain * 2.)?.round()?;
    Ok(vec![
        ("tight far groups", (&plain * 1e-3)?.broadcast_add(&(&group * 100.)?)?),
        ("times 1e20", (&plain * 1e20)?),
        ("times 1e38", plain.clamp(-3f32, 3.)?.affine(1e38, 0.)?),
        ("times 1e-25", (&plain * 1e-25)?),
        ("times 1e-41", (&plain * 1e-41)?),
        ("a huge column", (&plain + column.broadcast_mul(&plain.affine(1e12, 0.)?)?)?),
        ("a huge column of two values", plain.broadcast_add(&group.broadcast_mul(&(&column * 1e20)?)?)?),
        ("an offset", (&plain + 1e6)?),
        ("an outlier", plain.broadcast_add(&(outlier * 1e15)?)?),
        ("whole numbers", whole.clone()),
        ("rows of zeros", whole.broadcast_mul(&group)?),
        ("equal rows", plain.narrow(0, 0, half)?.repeat((2, 1))?),
        ("three places", plain.narrow(0, 0, 3)?.repeat((n / 3, 1))?),
        ("plain", plain),
    ])
}

#[test]
fn trustworthiness_and_recall_are_those_of_f64_for_every_metric() -> Result<()> {
    let (n, k) = (120, 6);
    for d in [3, 70] {
        for (name, rows) in nasty(n, d)? {
            let layouts = [noise(n, 2, 1)?, rows.narrow(1, 0, 2)?.contiguous()?];
            for metric in Metric::ALL {
                for (which, layout) in layouts.iter().enumerate() {
                    if name == "an outlier" && which == 1 {
                        // From the far point all others are equally far in the f32 of the search,
                        // which takes the first.
                        continue;
                    }
                    let what = format!("{name}, {d} features, {}, layout {which}", metric.name());
                    let (trust, recall) = figures(&rows, layout, k, metric)?;
                    let of = TrueDistances::Rows(&rows, metric);
                    let got = measure::trustworthiness(of, layout, k, n)?;
                    assert!((got - trust).abs() < FOUR_DIGITS, "{what}: trustworthiness {got} for {trust}");
                    let got = measure::knn_recall(of, layout, k)?;
                    // The search takes 1 less the cosine in f64: of angles of 1e-6, which are
                    // 1e-13, three digits are left, and neighbours that are nearer to each other
                    // than that may change places.
                    let is_blunt =
                        name == "an offset" && matches!(metric, Metric::Cosine | Metric::Correlation);
                    let room = if is_blunt { 5e-3 } else { FOUR_DIGITS };
                    assert!((got - recall).abs() < room, "{what}: recall {got} for {recall}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_sample_is_measured_as_those_rows_are_with_its_error() -> Result<()> {
    let (n, m) = (120, 31);
    let labels: Vec<u32> = (0..n as u32).map(|i| i % 3).collect();
    for (name, rows) in nasty(n, 5)? {
        for (which, layout) in [noise(n, 2, 1)?, rows.narrow(1, 0, 2)?.contiguous()?].iter().enumerate() {
            if name == "an outlier" && which == 1 {
                // As above.
                continue;
            }
            let of = |sample| {
                let metric = Metric::Euclidean;
                Measures::of_sample(
                    TrueDistances::Rows(&rows, metric),
                    Some(&labels),
                    layout,
                    None,
                    sample,
                    &mut |_| {},
                )
            };
            let got = of(m)?;
            let all: Vec<usize> = (0..n).collect();
            let near = nearest(&f64s(layout)?, &all, 10);
            let votes = near.iter().enumerate().map(|(i, near)| {
                let votes = |label: u32| near.iter().filter(|&&j| labels[j] == label).count();
                let most = (0..3).rev().max_by_key(|&label| votes(label));
                if most == Some(labels[i]) { 1. } else { 0. }
            });
            let column = |k, of: usize| -> Result<Vec<f64>> {
                Ok(of_rows(&rows, layout, k, Metric::Euclidean)?.iter().map(|row| row[of]).collect())
            };
            for (figure, got, each) in [
                ("trustworthiness", got.trustworthiness, column(12, 0)?),
                ("recall", got.knn_recall, column(10, 1)?),
                ("labels", got.knn_label_accuracy, votes.collect()),
            ] {
                let (value, error) = sampled(&each, m);
                let what = format!("{figure} of {name}, layout {which}: {got:?} for {value} ± {error}");
                let is_right = |got: Estimate| {
                    (got.value - value).abs() < FOUR_DIGITS && (got.error - error).abs() < 1e-4
                };
                assert!(got.is_some_and(is_right), "{what}");
            }
            assert!(
                of(n)?.knn_recall.is_some_and(|all| all.error == 0.) && of(n)? == of(usize::MAX)?,
                "{name}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_divergence_over_pairs_of_some_points_tells_how_far_it_may_be() -> Result<()> {
    let (n, m, k) = (200, 50, 21);
    let (rows, layout) = (noise(n, 5, 2)?, noise(n, 2, 3)?);
    let near = knn(&rows, k, Metric::Euclidean)?;
    let graph = symmetrize(&near.indices, &perplexity_search(&near.distances, &[7.])?)?;
    for scale in [1f64, 1e-20, 1e20] {
        let y = layout.affine(scale, 0.)?;
        let points = f64s(&y)?;
        let weight = |i: usize| -> f64 {
            let others = (0..n).filter(|&j| j != i);
            others.map(|j| 1. / (1. + distance(&points[i], &points[j], Metric::Euclidean).powi(2))).sum()
        };
        let each: Vec<f64> = (0..n).map(weight).collect();
        let (mean, error) = sampled(&each, m);
        let want = layout_divergence_reference(&graph, &y, mean * n as f64, 1.)?;
        let got = measure::kl_estimate(&graph, &y, 1., m)?;
        let what = format!("times {scale}: {got:?} for {want} ± {}", error / mean);
        assert!((got.value - want).abs() < FOUR_DIGITS * want.max(1.), "{what}");
        assert!((got.error - error / mean).abs() < 1e-3 * error / mean + 1e-7, "{what}");
        let all = measure::kl_estimate(&graph, &y, 1., n)?;
        assert_eq!(all, Estimate::exact(measure::kl_of_affinities(&graph, &y, 1.)?));
        assert!((all.value - got.value).abs() < 2. * got.error + 1e-6, "{what}, all {all:?}");
    }
    Ok(())
}

#[test]
fn the_divergence_is_that_of_f64_for_rows_and_layouts_of_any_scale() -> Result<()> {
    let (n, perplexity) = (60, 7.);
    let k = 3 * perplexity as usize;
    for (name, rows) in nasty(n, 5)? {
        if ["whole numbers", "rows of zeros", "equal rows", "an outlier"].contains(&name) {
            // A draw decides which of the equally far rows are neighbours.
            continue;
        }
        // Affinities do not depend on the unit, in which the distances of the reference must fit
        // f32.
        let wide = rows.to_dtype(DType::F64)?;
        let in_unit = (&wide / wide.abs()?.max_all()?.to_scalar::<f64>()?)?.to_dtype(DType::F32)?;
        let near =
            knn_reference(if name.starts_with("times") { &in_unit } else { &rows }, k, Metric::Euclidean)?;
        let p = perplexity_search_reference(&near.distances, &[perplexity])?;
        let graph = symmetrize_reference(&near.indices, &p)?;
        let layout = noise(n, 2, 4)?;
        for (scale, alpha) in
            [(1., 1f32), (30., 0.5), (30., 12.), (1e20, 1.), (1e38 / 4., 0.7), (1e-25, 1.), (0., 1.)]
        {
            let layout = (&layout * scale)?;
            let config = TsneConfig { perplexity, degrees_of_freedom: alpha, ..TsneConfig::default() };
            let got = measure::true_kl(&rows, &layout, &config, Philox::new(0, 0))?;
            // Where all weights are far below 1 they are a power of the distance, of which the unit
            // falls out.
            let unit = if scale > 1e10 { 1e-10 * scale } else { 1. };
            let y = (layout.to_dtype(DType::F64)? / unit)?;
            let (_, total) = repulsion_reference(&y, alpha.into())?;
            let want = layout_divergence_reference(&graph, &y, total, alpha.into())?;
            let what = format!("{name}, layout times {scale}, alpha {alpha}");
            assert!((got - want).abs() < FOUR_DIGITS * want.max(1.), "{what}: {got} for {want}");
            assert!(got >= 0., "{what}: {got}");
        }
    }
    Ok(())
}

#[test]
fn no_divergence_is_below_0_by_any_method() -> Result<()> {
    // Four rows, each fifty times: in a good layout all of a group lie on one point, where a grid
    // is least exact.
    let rows = (noise(4, 5, 5)? * 10.)?.repeat((50, 1))?;
    for method in [Method::Fft, Method::BarnesHut, Method::Exact] {
        let config = TsneConfig { perplexity: 40., method: Some(method), ..TsneConfig::default() };
        let mut run = TsneTrainer::new(config, Philox::new(71, 6), &rows)?;
        run.fit_with(|_, seen| {
            assert!(seen.kl >= 0., "{method:?}: {seen:?}");
            Ok(ControlFlow::Continue(()))
        })?;
        let kl = measure::kl_of_affinities(run.affinities(), &run.layout()?, 1.)?;
        assert!((0. ..0.5).contains(&kl), "{method:?}: {kl}");
    }
    Ok(())
}

#[test]
fn what_a_run_found_measures_as_another_search_does() -> Result<()> {
    let (n, d) = (150, 20);
    for (name, rows) in nasty(n, d)? {
        for metric in Metric::ALL {
            let config = TsneConfig {
                perplexity: 8.,
                metric,
                method: Some(Method::Exact),
                iterations: 20,
                early_iterations: 20,
                ..TsneConfig::default()
            };
            let run = TsneTrainer::new(config, Philox::new(71, 7), &rows)?;
            let (layout, labels) = (noise(n, 2, 8)?, (0..n as u32).map(|i| i % 3).collect::<Vec<_>>());
            let truth = TrueDistances::Rows(&rows, metric);
            let of = |nearest| Measures::of(truth, Some(&labels), &layout, nearest, &mut |_| {});
            let (got, want) = (of(run.nearest())?, of(None)?);
            let what = format!("{name}, {}", metric.name());
            assert_eq!(run.nearest().map(|found| found.indices.dims().to_vec()), Some(vec![n, 11]), "{what}");
            assert_eq!(got, want, "{what}");
            // One search of points gives what a search for each measure gives.
            let alone = Measures {
                trustworthiness: Some(Estimate::exact(measure::trustworthiness(truth, &layout, 12, n)?)),
                knn_recall: Some(Estimate::exact(measure::knn_recall(truth, &layout, 10)?)),
                knn_label_accuracy: Some(Estimate::exact(measure::knn_label_accuracy(
                    &layout,
                    &Tensor::new(labels.clone(), &CPU)?,
                    10,
                )?)),
            };
            assert_eq!(want, alone, "{what}");
        }
    }
    Ok(())
}
