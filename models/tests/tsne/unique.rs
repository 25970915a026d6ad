//! Equal rows as one point.
use super::{CPU, message, short};
use candle::{DType, Result, Tensor};
use chandlery::tsne::{
    Affinity, Change, Embedding, GivenDistances, Method, Metric, NewValues, Start, TsneConfig, TsneTrainer,
    measure,
};
use chandlery::{FullBatchTrainer, LoadOptions, Model, Philox, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::tsne::knn;

const PLACE: Philox = Philox { seed: 11, stream: 0, offset: 0 };
const METHODS: [Method; 3] = [Method::Exact, Method::BarnesHut, Method::Fft];

/// Points, and the point of each row: each is there 1 to 5 times, and its rows are anywhere.
fn points(n: usize) -> Result<(Tensor, Vec<u32>)> {
    let drawn = uniform(n, &CPU, Philox::new(12, 0))?.to_vec1::<f32>()?;
    let times = drawn.into_iter().map(|x| 1 + (5. * x) as usize);
    let mut places: Vec<u32> = (0..).zip(times).flat_map(|(i, times)| vec![i; times.min(5)]).collect();
    let keys = uniform(places.len(), &CPU, Philox::new(12, 1))?.to_vec1::<f32>()?;
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
    places = order.into_iter().map(|i| places[i]).collect();
    Ok((normal((n, 4), &CPU, Philox::new(12, 2))?, places))
}

/// Rows of points, as `places` has them.
fn at(points: &Tensor, places: &[u32]) -> Result<Tensor> {
    points.index_select(&Tensor::from_slice(places, places.len(), &CPU)?, 0)
}

fn unique(config: TsneConfig) -> TsneConfig {
    TsneConfig { unique: true, ..config }
}

fn rest(run: &mut TsneTrainer) -> Result<()> {
    while run.step()?.is_some() {}
    Ok(())
}

fn bits(run: &TsneTrainer) -> Result<Vec<Vec<f32>>> {
    run.layout()?.to_vec2()
}

/// Asserts that rows at one point have one place, to the bit.
fn assert_together(layout: &[Vec<f32>], places: &[u32]) {
    for (row, place) in places.iter().enumerate() {
        let first = places.iter().position(|other| other == place).unwrap_or(row);
        assert_eq!(layout[row], layout[first], "row {row}, point {place}");
    }
}

/// Two rows at one point.
fn twins(places: &[u32]) -> (usize, usize) {
    let n = places.len();
    let found = (0..n).find_map(|i| (i + 1..n).find(|&j| places[j] == places[i]).map(|j| (i, j)));
    found.unwrap_or((0, 1))
}

/// A descent of all rows with all others as neighbours, from the same start, for some iterations.
fn assert_same_descent(config: &TsneConfig, room: f32) -> Result<()> {
    const FIGURE: f64 = 1e-4;
    let (of_points, places) = points(25)?;
    let (rows, n) = (at(&of_points, &places)?, places.len());
    let config = TsneConfig { neighbours: Some(n - 1), ..config.clone() };
    let start = at(&normal((25, config.n_dims), &CPU, Philox::new(12, 3))?, &places)?;
    let mut all = TsneTrainer::new(config.clone(), PLACE, &rows)?.start_at(&start)?;
    let mut run = TsneTrainer::new(unique(config.clone()), PLACE, &rows)?.start_at(&start)?;
    assert_eq!((run.n_points(), all.n_points()), (25, n));
    let what = format!("{:?} {:?} {:?} {}", config.method, config.affinity, config.metric, config.n_dims);
    // β is found to 1e-6 nats of the entropy, which is some 1e-5 of an affinity. Large steps make
    // more of that in a coordinate; the sums hardly change.
    let near = |got: f64, want: f64, room: f64, name: &str| {
        assert!((got - want).abs() <= room * want.abs(), "{what}: {name} {got}, {want}");
    };
    near(run.kl()?, all.kl()?, 2e-6, "divergence at the start");
    while let (Some(got), Some(want)) = (run.step()?, all.step()?) {
        near(got.kl, want.kl, FIGURE, "divergence");
        near(got.gradient_norm, want.gradient_norm, FIGURE, "norm");
        near(got.span, want.span, room.into(), "span");
        let (got, want) = (bits(&run)?, bits(&all)?);
        assert_together(&got, &places);
        let largest = want.iter().flatten().fold(0f32, |most, y| most.max(y.abs()));
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() <= room * largest, "{what}: {got}, {want} of {largest}");
        }
    }
    Ok(())
}

/// Few iterations: rounding grows in a descent, and turns a gain where a gradient is near 0.
fn some() -> TsneConfig {
    TsneConfig { perplexity: 8., early_iterations: 4, iterations: 4, ..TsneConfig::default() }
}

#[test]
fn points_move_as_all_rows_that_begin_together() -> Result<()> {
    for method in METHODS {
        for degrees_of_freedom in [1., 0.6] {
            let config = TsneConfig { method: Some(method), theta: 0., degrees_of_freedom, ..some() };
            assert_same_descent(&config, 1e-3)?;
        }
    }
    let exact = TsneConfig { method: Some(Method::Exact), ..some() };
    for affinity in [Affinity::Uniform, Affinity::FixedWidth(1.5), Affinity::FixedWidth(0.01)] {
        assert_same_descent(&TsneConfig { affinity, ..exact.clone() }, 1e-3)?;
    }
    for metric in [Metric::Manhattan, Metric::Chebyshev, Metric::Cosine, Metric::Correlation] {
        assert_same_descent(&TsneConfig { metric, ..exact.clone() }, 1e-3)?;
    }
    for n_dims in [1, 3] {
        // On a line points pass each other.
        assert_same_descent(&TsneConfig { n_dims, ..exact.clone() }, 2e-3)?;
    }
    assert_same_descent(&TsneConfig { further_perplexities: vec![1., 20.], ..exact }, 1e-3)
}

/// `p_ij` of all rows in f64: the neighbours of a row are those at its point and those at the `k`
/// nearest.
fn affinities(points: &[Vec<f64>], places: &[u32], k: usize, perplexity: f64) -> Vec<Vec<f64>> {
    let n = places.len();
    let square = |a: u32, b: u32| -> f64 {
        points[a as usize].iter().zip(&points[b as usize]).map(|(a, b)| (a - b).powi(2)).sum()
    };
    let conditional = |i: usize| {
        let mut near: Vec<u32> = (0..points.len() as u32).collect();
        near.sort_by(|&a, &b| square(places[i], a).total_cmp(&square(places[i], b)));
        // The first is the point itself.
        near.truncate(k + 1);
        let weights = |beta: f64| -> Vec<f64> {
            let weight = |j: usize| match j != i && near.contains(&places[j]) {
                true => (-beta * square(places[i], places[j])).exp(),
                false => 0.,
            };
            let all: Vec<f64> = (0..n).map(weight).collect();
            let sum: f64 = all.iter().sum();
            all.iter().map(|w| w / sum).collect()
        };
        let entropy = |p: &[f64]| -> f64 { p.iter().filter(|&&p| p > 0.).map(|p| -p * p.ln()).sum() };
        let (mut low, mut high) = (1e-6, 1e3);
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            if entropy(&weights(middle)) > perplexity.ln() { low = middle } else { high = middle }
        }
        weights(low)
    };
    let p: Vec<Vec<f64>> = (0..n).map(conditional).collect();
    (0..n).map(|i| (0..n).map(|j| (p[i][j] + p[j][i]) / (2. * n as f64)).collect()).collect()
}

/// The divergence of all rows at their points.
fn divergence(p: &[Vec<f64>], points: &[f64], places: &[u32], alpha: f64) -> f64 {
    let weight = |i: usize, j: usize| {
        let (a, b) = (2 * places[i] as usize, 2 * places[j] as usize);
        let square = (points[a] - points[b]).powi(2) + (points[a + 1] - points[b + 1]).powi(2);
        (1. + square / alpha).powf(-alpha)
    };
    let n = places.len();
    let pairs = || (0..n).flat_map(move |i| (0..n).filter(move |&j| j != i).map(move |j| (i, j)));
    let total: f64 = pairs().map(|(i, j)| weight(i, j)).sum();
    let there = pairs().filter(|&(i, j)| p[i][j] > 0.);
    there.map(|(i, j)| p[i][j] * (p[i][j] * total / weight(i, j)).ln()).sum()
}

#[test]
fn divergence_and_gradient_are_those_of_all_rows_in_plain_loops() -> Result<()> {
    let (of_points, places) = points(20)?;
    let (rows, n) = (at(&of_points, &places)?, places.len());
    let host: Vec<Vec<f64>> = of_points.to_dtype(DType::F64)?.to_vec2()?;
    let first = normal((20, 2), &CPU, Philox::new(12, 4))?;
    let y: Vec<f64> = first.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    for (k, perplexity, alpha) in [(12, 9., 1f32), (19, 12., 0.7)] {
        let p = affinities(&host, &places, k, perplexity);
        let config = TsneConfig {
            perplexity,
            neighbours: Some(k),
            degrees_of_freedom: alpha,
            method: Some(Method::Exact),
            early_iterations: 0,
            iterations: 1,
            learning_rate: Some(n as f64 / 4.),
            ..TsneConfig::default()
        };
        let start = at(&first, &places)?;
        let mut run = TsneTrainer::new(unique(config), PLACE, &rows)?.start_at(&start)?;
        let of = |y: &[f64]| divergence(&p, y, &places, alpha.into());
        let (got, want) = (run.kl_estimate(&start, usize::MAX)?.value, of(&y));
        assert!((got - want).abs() < 2e-5 * want, "k {k}: {got}, {want}");
        run.step()?;
        let counts: Vec<f64> =
            (0..20).map(|u| places.iter().filter(|&&place| place == u).count() as f64).collect();
        // The first step of a gain is 1.2 times rate and gradient, and then the mean of all rows
        // goes.
        let h = 1e-5;
        let mut moved = vec![0.; 40];
        for at in 0..40 {
            let by = |by: f64| {
                let mut y = y.clone();
                y[at] += by;
                of(&y)
            };
            let gradient = (by(h) - by(-h)) / (2. * h) / counts[at / 2];
            moved[at] = y[at] - 1.2 * n as f64 / 4. * gradient;
        }
        let layout = run.layout()?.to_vec2::<f32>()?;
        for d in 0..2 {
            let mean = (0..20).map(|u| counts[u] * moved[2 * u + d]).sum::<f64>() / n as f64;
            for (row, &place) in places.iter().enumerate() {
                let (got, want) = (f64::from(layout[row][d]), moved[2 * place as usize + d] - mean);
                assert!((got - want).abs() < 2e-4, "k {k}, row {row}, {d}: {got}, {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_all_differ_have_the_bits_of_a_plain_run() -> Result<()> {
    let rows = normal((80, 5), &CPU, Philox::new(12, 5))?;
    for method in METHODS {
        let mut plain = TsneTrainer::new(short(method), PLACE, &rows)?;
        let mut run = TsneTrainer::new(unique(short(method)), PLACE, &rows)?;
        assert_eq!(run.n_points(), 80);
        rest(&mut plain)?;
        rest(&mut run)?;
        assert_eq!(bits(&run)?, bits(&plain)?, "{method:?}");
        assert_eq!(run.metrics()?, plain.metrics()?);
    }
    Ok(())
}

#[test]
fn equal_rows_have_one_place_in_every_layout_and_the_divergence_of_all() -> Result<()> {
    let (of_points, places) = points(60)?;
    let rows = at(&of_points, &places)?;
    for method in METHODS {
        for start in [Start::Pca, Start::Random, Start::Spectral] {
            let config = unique(TsneConfig { start, ..short(method) });
            let mut run = TsneTrainer::new(config.clone(), PLACE, &rows)?;
            assert_together(&bits(&run)?, &places);
            rest(&mut run)?;
            assert_together(&bits(&run)?, &places);
            let embedding = run.model()?;
            let kl = measure::true_kl(&rows, embedding.layout(), &config, PLACE)?;
            let told = run.metrics()?.kl;
            assert!((kl - told).abs() < 0.01 * kl, "{method:?} {start:?}: {told}, {kl}");
            assert_eq!(kl, run.kl_estimate(embedding.layout(), usize::MAX)?.value);
        }
    }
    let config = unique(short(Method::Exact));
    let mut run = TsneTrainer::new(config.clone(), PLACE, &rows)?;
    rest(&mut run)?;
    let folder = tempfile::tempdir()?;
    run.model()?.save_pretrained(folder.path())?;
    let back = Embedding::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert!(back.config().unique && back.layout().dims() == [places.len(), 2]);
    let placed = back.transform(&rows.narrow(0, 0, 3)?)?.to_vec2::<f32>()?;
    assert!(placed.iter().flatten().all(|y| y.is_finite()), "{placed:?}");
    // Half of the pairs stand for all.
    let n = places.len();
    let some = run.kl_estimate(back.layout(), n / 2)?;
    let kl = run.kl_estimate(back.layout(), n)?.value;
    assert!((some.value - kl).abs() < 3. * some.error + 1e-3, "{some:?}, {kl}");
    // So do logarithms, where f32 has no squares.
    let wide = (back.layout() * 1e17)?;
    let kl = run.kl_estimate(&wide, n)?.value;
    assert!(kl.is_finite() && kl > 10., "{kl}");
    let (_, b) = twins(&places);
    let mut apart = bits(&run)?;
    apart[b][0] += 1.;
    let error = message(measure::true_kl(&rows, &Tensor::new(apart, &CPU)?, &config, PLACE));
    assert!(error.contains("equal rows must have one place"), "{error}");
    Ok(())
}

#[test]
fn few_points_and_one_have_layouts() -> Result<()> {
    // 0 of both signs is equal.
    for (rows, n) in [
        (Tensor::full(4f32, (40, 3), &CPU)?, 1),
        (Tensor::new(vec![vec![0f32, 1.], vec![-0., 1.]], &CPU)?, 1),
        (at(&normal((2, 3), &CPU, Philox::new(12, 6))?, &[0, 0, 0, 1, 1, 0])?, 2),
        (at(&normal((3, 3), &CPU, Philox::new(12, 6))?, &[0; 50].map(|_: u32| 1))?, 1),
        (at(&normal((3, 3), &CPU, Philox::new(12, 6))?, &[[2; 30], [0; 30], [1; 30]].concat())?, 3),
    ] {
        for (method, start) in
            [(Method::Exact, Start::Pca), (Method::BarnesHut, Start::Random), (Method::Fft, Start::Spectral)]
        {
            let config = TsneConfig { start, keep_neighbours: true, ..short(method) };
            let mut run = TsneTrainer::new(unique(config), PLACE, &rows)?;
            assert_eq!(run.n_points(), n);
            rest(&mut run)?;
            let (layout, seen) = (bits(&run)?, run.metrics()?);
            assert!(layout.iter().flatten().all(|y| y.is_finite()), "{method:?} {n}: {layout:?}");
            assert!(seen.kl.is_finite() && seen.gradient_norm.is_finite(), "{method:?} {n}: {seen:?}");
            if n == 1 {
                assert!(layout.iter().flatten().all(|&y| y == 0.), "{method:?}: {layout:?}");
                assert!(seen.kl < 1e-5, "{method:?}: {seen:?}");
            }
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("run.safetensors");
            run.save(&path, &serde_json::Value::Null)?;
            let (again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
            assert_eq!(bits(&again)?, layout, "{method:?} {n}");
        }
    }
    Ok(())
}

#[test]
fn a_run_that_is_killed_and_resumed_comes_to_the_same_bits() -> Result<()> {
    let (of_points, places) = points(50)?;
    let rows = at(&of_points, &places)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let to = NewValues { perplexities: Some(vec![4., 12.]), ..NewValues::default() };
    for method in METHODS {
        let changes = vec![Change { iteration: 60, to: to.clone() }];
        let config = unique(TsneConfig { changes, ..short(method) });
        let mut whole = TsneTrainer::new(config.clone(), PLACE, &rows)?;
        let mut seen = vec![];
        while let Some(progress) = whole.step()? {
            seen.push(progress);
        }
        for killed in [0, 2, seen.len() - 1] {
            let mut run = TsneTrainer::new(config.clone(), PLACE, &rows)?;
            for _ in 0..killed {
                run.step()?;
            }
            run.save(&path, &serde_json::Value::Null)?;
            let (mut again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
            assert_eq!(again.notes(), run.notes());
            rest(&mut again)?;
            assert_eq!(bits(&again)?, bits(&whole)?, "{method:?} after {killed}");
            assert_eq!(again.metrics()?, whole.metrics()?);
        }
    }
    Ok(())
}

#[test]
fn points_in_an_order_of_their_own_keep_their_weights() -> Result<()> {
    // So many that they are sorted.
    let n = 20_500;
    let of_points = normal((n, 3), &CPU, Philox::new(12, 7))?;
    let places: Vec<u32> = (0..n as u32).chain((0..n as u32).filter(|i| i % 3 == 0)).collect();
    let rows = at(&of_points, &places)?;
    let config = TsneConfig { perplexity: 3., early_iterations: 50, iterations: 25, ..TsneConfig::default() };
    let mut run = TsneTrainer::new(unique(config), PLACE, &rows)?;
    rest(&mut run)?;
    let layout = run.layout()?;
    let (told, kl) = (run.metrics()?.kl, run.kl_estimate(&layout, usize::MAX)?.value);
    assert!((told - kl).abs() < 0.01 * kl, "{told} for {kl}");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    run.save(&path, &serde_json::Value::Null)?;
    let (again, _) = TsneTrainer::load(&path, &rows, &CPU)?;
    assert_eq!(bits(&again)?, bits(&run)?);
    assert!((again.kl()? - kl).abs() < 1e-5 * kl, "{} for {kl}", again.kl()?);
    Ok(())
}

#[test]
fn rows_of_a_matrix_are_equal_where_all_distances_are() -> Result<()> {
    let (of_points, places) = points(30)?;
    let (host, n) = (of_points.to_dtype(DType::F64)?.to_vec2::<f64>()?, places.len());
    let far = |a: u32, b: u32| -> f64 {
        let pairs = host[a as usize].iter().zip(&host[b as usize]);
        pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    let mut all: Vec<f64> =
        places.iter().flat_map(|&a| places.iter().map(move |&b| (a, b))).map(|(a, b)| far(a, b)).collect();
    let run = |all: &[f64], unique: bool| {
        let config = TsneConfig { unique, start: Start::Random, ..short(Method::Exact) };
        TsneTrainer::from_given_distances(config, PLACE, &GivenDistances { all, n }, &CPU)
    };
    let mut of_matrix = run(&all, true)?;
    assert_eq!(of_matrix.n_points(), 30);
    let config = unique(TsneConfig { start: Start::Random, ..short(Method::Exact) });
    let of_rows = TsneTrainer::new(config, PLACE, &at(&of_points, &places)?)?;
    // Distances are rounded otherwise.
    let (got, want) = (of_matrix.kl()?, of_rows.kl()?);
    assert!((got - want).abs() < 1e-4 * want, "{got}, {want}");
    rest(&mut of_matrix)?;
    assert_together(&bits(&of_matrix)?, &places);
    // All other lines still say that both are as far; one of them does not see them so.
    let (a, b) = twins(&places);
    let other = (0..n).find(|&l| l != a && l != b && places[l] != places[a]).unwrap_or(2);
    all[other * n + b] += 0.5;
    assert_eq!(
        run(&all, true)?.n_points(),
        30 + if places.iter().filter(|&&p| p == places[other]).count() > 1 { 2 } else { 1 }
    );
    assert_eq!(run(&all, false)?.n_points(), n);
    let zeros = vec![0.; 25];
    let config = unique(TsneConfig::default());
    let one = TsneTrainer::from_given_distances(config, PLACE, &GivenDistances { all: &zeros, n: 5 }, &CPU)?;
    assert_eq!(one.n_points(), 1);
    Ok(())
}

#[test]
fn runs_that_do_not_know_equal_rows_refuse_unique_ones() -> Result<()> {
    let rows = uniform((40, 3), &CPU, Philox::new(12, 8))?;
    let near = knn(&rows, 30, Metric::Euclidean)?;
    let want = "unique is for rows and for distances of all pairs";
    let error = message(TsneTrainer::from_neighbours(unique(short(Method::Exact)), PLACE, &near));
    assert!(error.contains(want), "{error}");
    let run = TsneTrainer::new(short(Method::Exact), PLACE, &rows)?;
    let (graph, layout) = (run.affinities().clone(), run.layout()?);
    let error = message(TsneTrainer::from_affinities(unique(short(Method::Exact)), graph, &layout));
    assert!(error.contains(want), "{error}");
    Ok(())
}
