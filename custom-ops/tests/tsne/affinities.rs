use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::tsne::{
    Affinities, Metric, affinities_in_order, knn, perplexity_search, perplexity_search_reference, symmetrize,
    symmetrize_reference,
};

#[test]
fn a_graph_with_points_or_edges_that_there_are_not_is_refused() -> Result<()> {
    let tensor = |x: &[u32]| Tensor::new(x, &CPU);
    let order = tensor(&[1, 0])?;
    let says = |offsets: &[u32], columns: &[u32], want: &str| -> Result<()> {
        let values = Tensor::zeros(columns.len(), DType::F32, &CPU)?;
        let graph = Affinities { offsets: tensor(offsets)?, columns: tensor(columns)?, values };
        let said = affinities_in_order(&graph, &order).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(said.as_ref().map_err(|e| e.lines().next().unwrap_or_default()), Err(want));
        Ok(())
    };
    says(&[0, 1, 2], &[1, 2], "affinities_in_order: columns must be below 2, the number of points, got 2")?;
    let ends = "affinities_in_order: offsets must ascend to 2, the number of edges, got";
    says(&[0, 1, 3], &[1, 0], &format!("{ends} 1 and then 3"))?;
    says(&[0, 2, 1], &[1, 0], &format!("{ends} 2 and then 1"))
}

/// Entropies are met to 1e-6 nats, of which some tens make a relative difference of an affinity.
const AFFINITY: f64 = 3e-5;

fn check(what: &str, distances: &Tensor, perplexities: &[f64]) -> Result<()> {
    let got = perplexity_search(distances, perplexities)?;
    let want = perplexity_search_reference(distances, perplexities)?;
    assert_near(what, &flat(&got)?, &flat(&want)?, AFFINITY);
    for (i, sum) in flat(&got.sum(1)?)?.iter().enumerate() {
        assert!((sum - 1.).abs() < 1e-5, "{what}: row {i} sums to {sum}");
    }
    Ok(())
}

#[test]
fn affinities_are_those_of_a_bisection() -> Result<()> {
    for (n, k, perplexity) in
        [(1, 2, 1.5), (3, 7, 2.), (20, 16, 5.), (33, 31, 10.), (50, 90, 30.), (5, 100, 99.)]
    {
        let distances = (gaussian(n, k, 1)?.abs()? + 0.5)?;
        check(&format!("{n}×{k}"), &distances, &[perplexity])?;
        check(&format!("{n}×{k}, several"), &distances, &[perplexity, 1.2, 1.9])?;
    }
    Ok(())
}

#[test]
fn the_entropy_is_that_of_the_perplexity() -> Result<()> {
    let found = knn(&gaussian(400, 8, 2)?, 60, Metric::Euclidean)?;
    for row in perplexity_search(&found.distances, &[20.])?.to_vec2::<f32>()? {
        let entropy: f64 = row.iter().map(|&p| f64::from(p)).filter(|&p| p > 0.).map(|p| -p * p.ln()).sum();
        assert!((entropy - 20f64.ln()).abs() < 3e-6, "perplexity {} for 20", entropy.exp());
    }
    Ok(())
}

#[test]
fn the_ends_of_the_range_are_one_neighbour_and_all() -> Result<()> {
    let distances = (gaussian(9, 12, 3)?.abs()? + 1.)?;
    // At perplexity k the entropy is flat in β: 1e-6 nats are some 1e-3 of an affinity.
    for p in flat(&perplexity_search(&distances, &[12.])?)? {
        assert!((p * 12. - 1.).abs() < 5e-3, "{p}");
    }
    let nearest = perplexity_search(&distances, &[1.])?;
    assert!(flat(&nearest.max(1)?)?.iter().all(|&p| p > 0.999_99));
    assert_eq!(flat(&perplexity_search(&distances.narrow(1, 0, 1)?.contiguous()?, &[1.])?)?, [1.; 9]);
    Ok(())
}

#[test]
fn equal_distances_share_alike_whatever_the_perplexity() -> Result<()> {
    for distance in [0., 1e-20, 3., 1e15] {
        let distances = (Tensor::zeros((2, 5), DType::F32, &CPU)? + distance)?;
        for perplexity in [1., 2., 5.] {
            assert_near("equal", &flat(&perplexity_search(&distances, &[perplexity])?)?, &[0.2; 10], 1e-6);
        }
    }
    // Four duplicates of the row, where two neighbours are asked for.
    let ties = Tensor::new(&[[0f32, 3., 0., 0., 2., 0.]], &CPU)?;
    assert_near("ties", &flat(&perplexity_search(&ties, &[2.])?)?, &[0.25, 0., 0.25, 0.25, 0., 0.25], 1e-6);
    Ok(())
}

#[test]
fn any_scale_has_affinities() -> Result<()> {
    let distances = (gaussian(12, 40, 4)?.abs()? + 0.1)?;
    for scale in [1e-18, 1e-6, 1e6, 1e18] {
        check(&format!("scale {scale}"), &(&distances * scale)?, &[10.])?;
    }
    // One that is far beyond the others does not hide their differences.
    let mut rows = distances.to_vec2::<f32>()?;
    rows.iter_mut().for_each(|row| row[7] = 1e9);
    check("an outlier", &Tensor::new(rows, &CPU)?, &[10.])
}

#[test]
fn merged_affinities_are_symmetric_and_sum_to_one() -> Result<()> {
    for (n, k) in [(2, 1), (5, 4), (10, 3), (67, 20), (600, 15)] {
        let found = knn(&gaussian(n, 4, 5)?, k, Metric::Euclidean)?;
        let p = perplexity_search(&found.distances, &[(k as f64 / 2.).max(1.)])?;
        let (got, want) = (symmetrize(&found.indices, &p)?, symmetrize_reference(&found.indices, &p)?);
        assert_eq!(got.n(), n);
        assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?, "{n}, {k}");
        assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?, "{n}, {k}");
        let values = flat(&got.values)?;
        assert_near("values", &values, &flat(&want.values)?, 2e-7);
        assert!((values.iter().sum::<f64>() - 1.).abs() < 1e-5);
        let dense = dense(n, &got.offsets.to_vec1()?, &got.columns.to_vec1()?, &values);
        for i in 0..n {
            for j in 0..n {
                assert_eq!(dense[i * n + j], dense[j * n + i], "{i}, {j}");
            }
        }
    }
    Ok(())
}

fn dense(n: usize, offsets: &[u32], columns: &[u32], values: &[f64]) -> Vec<f64> {
    let mut dense = vec![0.; n * n];
    for i in 0..n {
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            dense[i * n + columns[e] as usize] = values[e];
        }
    }
    dense
}

#[test]
fn results_do_not_depend_on_threads_or_runs() -> Result<()> {
    let found = knn(&gaussian(1500, 4, 6)?, 20, Metric::Euclidean)?;
    let run = || {
        let p = perplexity_search(&found.distances, &[7.]).unwrap();
        let graph = symmetrize(&found.indices, &p).unwrap();
        (
            p.to_vec2::<f32>().unwrap(),
            graph.columns.to_vec1::<u32>().unwrap(),
            graph.values.to_vec1::<f32>().unwrap(),
        )
    };
    let [one, three] = on_threads(run);
    assert!(one == three && one == run());
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let distances = Tensor::ones((3, 2), DType::F32, &CPU)?;
    let indices = Tensor::new(&[[1u32, 2], [0, 3], [0, 1]], &CPU)?;
    let says = |got: String, want: &str| assert_eq!(got, want);
    says(
        message(perplexity_search(&distances, &[2.5])),
        "perplexity_search: a perplexity must be in 1..=2, the number of neighbours, got 2.5",
    );
    says(
        message(perplexity_search(&distances, &[f64::NAN])),
        "perplexity_search: a perplexity must be in 1..=2, the number of neighbours, got NaN",
    );
    says(
        message(perplexity_search(&distances, &[])),
        "perplexity_search: there must be 1 to 8 perplexities, got 0",
    );
    says(message(symmetrize(&indices, &distances)), "symmetrize: indices must be below 3, got 3 in row 1");
    let wide = Tensor::ones((3, 3), DType::F32, &CPU)?;
    says(message(symmetrize(&indices, &wide)), "symmetrize: p must have shape [3, 2], got [3, 3]");
    Ok(())
}
