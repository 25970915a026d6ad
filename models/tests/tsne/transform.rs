//! New rows in a layout that stays.
use super::{CPU, groups, message, short, tsne};
use candle::{Result, Tensor};
use chandlery::tsne::{
    Embedding, Method, TransformConfig, TransformProgress, TransformTrainer, TsneConfig, measure,
};
use chandlery::{Encode, FullBatchTrainer, Philox, Trainer};
use chandlery_ops::core::normal;
use std::ops::ControlFlow;

#[test]
fn new_rows_find_their_places_by_themselves() -> Result<()> {
    let (rows, labels) = groups(60)?;
    let embedding = tsne(short(Method::Exact)).fit(&rows)?;
    // Rows of the embedding, a little moved, come to lie in their group.
    let moved = (&rows + (normal((180, 8), &CPU, Philox::new(7, 8))? * 0.01)?)?;
    let places = embedding.encode(&moved)?;
    let both = Tensor::cat(&[embedding.layout(), &places], 0)?;
    let twice = Tensor::cat(&[&labels, &labels], 0)?;
    let accuracy = measure::knn_label_accuracy(&both, &twice, 7)?;
    assert!(accuracy > 0.97, "{accuracy} of the rows and their copies lie in their group");
    // One by one they come to the same places.
    let alone = embedding.transform(&moved.narrow(0, 17, 1)?)?.to_vec2::<f32>()?;
    let together = places.get(17)?.to_vec1::<f32>()?;
    let near = alone[0].iter().zip(&together).all(|(a, b)| (a - b).abs() < 1e-2);
    assert!(near, "{alone:?} and {together:?}");
    assert_eq!(embedding.transform(&rows.narrow(0, 0, 0)?)?.dims(), [0, 2]);
    let config = TransformConfig { perplexity: 0.5, ..TransformConfig::default() };
    let error = message(embedding.transform_with(&rows, &config));
    assert!(error.contains("perplexity must be at least 1, got 0.5"), "{error}");
    let bare = Embedding::from_tensors(embedding.config().clone(), embedding.layout().clone(), None)?;
    assert!(message(bare.transform(&rows)).contains("has no rows to compare with"));
    Ok(())
}

#[test]
fn new_rows_come_to_the_same_places_by_a_grid_as_by_every_pair() -> Result<()> {
    let (rows, _) = groups(60)?;
    let exact = tsne(short(Method::Exact)).fit(&rows)?;
    let config = TsneConfig { method: Some(Method::Fft), ..exact.config().clone() };
    let on_grid = Embedding::from_tensors(config, exact.layout().clone(), Some(rows.clone()))?;
    let moved = (&rows + (normal((180, 8), &CPU, Philox::new(7, 8))? * 0.3)?)?;
    let (a, b) = (exact.transform(&moved)?, on_grid.transform(&moved)?);
    assert_ne!(a.to_vec2::<f32>()?, b.to_vec2::<f32>()?, "both are of one method: the test says nothing");
    let mut apart = (a - &b)?.sqr()?.sum(1)?.sqrt()?.to_vec1::<f32>()?;
    apart.sort_by(f32::total_cmp);
    // A few may lie between two groups, where little decides.
    assert!(apart[170] < 0.05, "{:?}", &apart[160..]);
    assert_eq!(b.to_vec2::<f32>()?, on_grid.transform(&moved)?.to_vec2::<f32>()?);
    Ok(())
}

/// A run of rows near those of three groups, of which some are pushed off the layout: they are
/// hardly pulled, and their steps are long.
fn pushed_off(method: Method, n_dims: usize) -> Result<(TransformTrainer, Tensor)> {
    let (rows, _) = groups(60)?;
    let config = TsneConfig { n_dims, method: Some(method), ..TsneConfig::default() };
    let layout = (rows.narrow(1, 0, n_dims)?.contiguous()? * 2.)?;
    let embedding = Embedding::from_tensors(config, layout, Some(rows.clone()))?;
    let moved = (&rows + (normal((180, 8), &CPU, Philox::new(7, 8))? * 0.3)?)?;
    let config = TransformConfig {
        exaggeration: 0.5,
        learning_rate: 0.3,
        largest_gradient: 0.5,
        iterations: 170,
        ..TransformConfig::default()
    };
    Ok((TransformTrainer::new(&embedding, config, &moved)?, moved))
}

#[test]
fn looks_checkpoints_and_breaks_change_no_bits_also_of_points_that_leave_the_grid() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("placed");
    for (method, n_dims) in
        [(Method::Fft, 2), (Method::Exact, 2), (Method::BarnesHut, 1), (Method::BarnesHut, 3)]
    {
        let (mut whole, _) = pushed_off(method, n_dims)?;
        whole.finish()?;
        let want = whole.model()?.to_vec2::<f32>()?;
        assert!(want.iter().flatten().all(|x| x.is_finite()), "{method:?}");
        let (mut run, rows) = pushed_off(method, n_dims)?;
        let start = run.model()?.to_vec2::<f32>()?;
        let mut seen: Vec<TransformProgress> = vec![];
        while let Some(progress) = run.step()? {
            seen.push(progress);
            run.save(&path, &serde_json::json!(seen.len()))?;
            let progress;
            (run, progress) = TransformTrainer::load(&path, &rows, &CPU)?;
            assert_eq!((progress, run.metrics()?), (serde_json::json!(seen.len()), seen[seen.len() - 1]));
        }
        assert_eq!(seen.iter().map(|seen| seen.iteration).collect::<Vec<_>>(), [50, 100, 150, 170]);
        assert!(run.model()?.to_vec2::<f32>()? == want, "{method:?} in {n_dims}: parts come elsewhere");
        assert_ne!(start, want);
        let outside: Vec<usize> = seen.iter().map(|seen| seen.outside).collect();
        match method {
            Method::Fft => assert!(outside.is_sorted() && outside[0] < outside[3], "{outside:?}"),
            _ => assert_eq!(outside, [0; 4]),
        }
        // The first look tells how far points came from where they began.
        let (mut first, _) = pushed_off(method, n_dims)?;
        first.fit_with(|_, _| Ok(ControlFlow::Break(())))?;
        let came = (first.model()? - Tensor::new(start, &CPU)?)?.sqr()?.sum(1)?.sqrt()?;
        let came = f64::from(came.mean(0)?.to_scalar::<f32>()?) / 50.;
        assert!((seen[0].moved / came - 1.).abs() < 1e-4, "{} and {came}", seen[0].moved);
        let error = message(TransformTrainer::load(&path, &rows.narrow(0, 0, 3)?, &CPU));
        assert!(error.contains("the run is of 180 rows, got [3, 8]"), "{error}");
    }
    Ok(())
}

#[test]
fn new_rows_have_affinities_to_the_rows_they_are_near_to() -> Result<()> {
    let (run, _) = pushed_off(Method::Fft, 2)?;
    let (neighbours, p) = run.affinities();
    assert_eq!((neighbours.dims(), p.dims()), (&[180, 15][..], &[180, 15][..]));
    // Moved rows are nearest to the rows that they were.
    let nearest: Vec<u32> = neighbours.narrow(1, 0, 1)?.flatten_all()?.to_vec1()?;
    let same = (0..).zip(&nearest).filter(|(i, near)| i == *near).count();
    assert!(same > 150, "{same} of 180");
    for p in p.to_vec2::<f32>()? {
        let entropy: f32 = p.iter().filter(|p| **p > 0.).map(|p| -p * p.ln()).sum();
        assert!((entropy.exp() - 5.).abs() < 1e-2 && (p.iter().sum::<f32>() - 1.).abs() < 1e-5, "{p:?}");
    }
    Ok(())
}

#[test]
fn many_new_rows_are_searched_as_those_of_the_layout_were() -> Result<()> {
    let rows = normal((10_000, 8), &CPU, Philox::new(7, 9))?;
    let (trained, new) = (rows.narrow(0, 0, 5000)?.contiguous()?, rows.narrow(0, 5000, 5000)?.contiguous()?);
    let of = |approximate, recall| -> Result<TransformTrainer> {
        let config = TsneConfig { approximate: Some(approximate), recall, ..TsneConfig::default() };
        let layout = (trained.narrow(1, 0, 2)?.contiguous()? * 5.)?;
        let embedding = Embedding::from_tensors(config, layout, Some(trained.clone()))?;
        let mut run = TransformTrainer::new(&embedding, TransformConfig::default(), &new)?;
        run.finish()?;
        Ok(run)
    };
    let (exact, some) = (of(false, 0.8)?, of(true, 0.8)?);
    let told = some.recall().map_or(0., |recall| recall.mean);
    assert_eq!(exact.recall().map(|recall| recall.interval), Some([1., 1.]));
    assert!((0.8..1.).contains(&told), "{told}");
    let [exact, some] = [exact, some].map(|run| run.affinities().0.to_vec2::<u32>());
    let (exact, some) = (exact?, some?);
    let same = exact.iter().zip(&some).map(|(a, b)| b.iter().filter(|j| a.contains(j)).count());
    let share = same.sum::<usize>() as f64 / (15 * 5000) as f64;
    assert!((share - told).abs() < 0.03, "{share} of the neighbours were found, {told} told");
    Ok(())
}
