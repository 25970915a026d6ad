//! Points that stand for several each, against as many points that lie on each other.
use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::core::uniform;
use chandlery_ops::tsne::{
    LayoutState, LayoutStep, Repulsion, RepulsionMethod, layout_step_, layout_step_reference,
    perplexity_search, perplexity_search_of_counts, perplexity_search_reference, repulsion_reference,
    symmetrize, symmetrize_reference,
};

/// How many each of `n` points stands for, 1 to 5.
fn weights(n: usize, seed: u64) -> Result<Vec<f32>> {
    let drawn = uniform(n, &CPU, chandlery_ops::Philox::new(seed, 0))?.to_vec1::<f32>()?;
    Ok(drawn.into_iter().map(|x| (1. + 5. * x).floor().min(5.)).collect())
}

/// The number of the point that each of all is at.
fn places(weights: &[f32]) -> Vec<u32> {
    (0..).zip(weights).flat_map(|(i, &weight)| std::iter::repeat_n(i, weight as usize)).collect()
}

fn tensor(values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), &CPU)
}

/// Rows of some points, each as often as it stands for.
fn repeated(rows: &Tensor, places: &[u32]) -> Result<Tensor> {
    rows.index_select(&Tensor::from_slice(places, places.len(), &CPU)?, 0)
}

fn forces(
    method: RepulsionMethod,
    layout: &Tensor,
    weights: Option<&Tensor>,
    alpha: f32,
) -> Result<(Vec<f64>, f64)> {
    let (n, d) = layout.dims2()?;
    let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
    Repulsion::new(method, n, d, alpha, &CPU)?.repulsion_of_(&forces, &total, layout, weights)?;
    Ok((flat(&forces)?, total.to_vec1::<f64>()?[0]))
}

#[test]
fn points_with_weights_push_as_so_many_points() -> Result<()> {
    const TREE: fn(f32) -> RepulsionMethod = |theta| RepulsionMethod::Tree { theta };
    for n in [1, 2, 7, 16, 17, 40, 300, 700] {
        let weights = weights(n, 3)?;
        let places = places(&weights);
        for (d, alpha) in [(2, 1f32), (2, 0.6), (3, 1.), (3, 2.)] {
            let layout = (gaussian(n, d, 1)? * 3.)?;
            let all = repeated(&layout, &places)?;
            let (want, want_total) = repulsion_reference(&all, alpha.into())?;
            let want = want.to_vec2::<f64>()?;
            let firsts: Vec<f64> = (0..n as u32)
                .flat_map(|i| want[places.iter().position(|&at| at == i).unwrap()].clone())
                .collect();
            let grid = RepulsionMethod::Grid { nodes: 128 };
            // A tree's error is that of the approximation, as without weights.
            for (method, room) in
                [(RepulsionMethod::Exact, 3e-6), (TREE(0.), 3e-6), (TREE(0.5), 0.03), (grid, 3e-3)]
            {
                if d == 3 && method == grid {
                    continue;
                }
                let what = format!("{method:?}, {n}×{d}, α {alpha}");
                let (got, total) = forces(method, &layout, Some(&tensor(&weights)?), alpha)?;
                match method {
                    RepulsionMethod::Exact | RepulsionMethod::Tree { theta: 0. } => {
                        assert_near(&what, &got, &firsts, room);
                    }
                    _ => {
                        let off: Vec<f64> = got.iter().zip(&firsts).map(|(a, b)| a - b).collect();
                        assert!(rms(&off) <= room * rms(&firsts), "{what}: {} {}", rms(&off), rms(&firsts));
                    }
                }
                let off = (total - want_total).abs() / want_total.max(1.);
                assert!(off <= room, "{what}: {total}, {want_total}");
            }
        }
    }
    Ok(())
}

#[test]
fn weights_of_1_are_none() -> Result<()> {
    let layout = (gaussian(900, 2, 2)? * 5.)?;
    let ones = Tensor::ones(900, DType::F32, &CPU)?;
    for method in
        [RepulsionMethod::Exact, RepulsionMethod::Tree { theta: 0.5 }, RepulsionMethod::Grid { nodes: 128 }]
    {
        let (got, total) = forces(method, &layout, Some(&ones), 1.)?;
        let (want, want_total) = forces(method, &layout, None, 1.)?;
        assert_near(&format!("{method:?}"), &got, &want, 1e-6);
        assert!((total - want_total).abs() <= 1e-7 * want_total, "{method:?}: {total}, {want_total}");
    }
    Ok(())
}

#[test]
fn neighbours_that_stand_for_several_have_the_affinities_of_so_many() -> Result<()> {
    for (n, k, perplexity) in [(1, 1, 1.), (3, 7, 4.), (20, 16, 5.), (33, 31, 40.), (9, 90, 30.)] {
        let distances = (gaussian(n, k, 1)?.abs()? + 0.5)?;
        let counts = weights(n * k, 5)?;
        let of_counts = Tensor::from_slice(&counts, (n, k), &CPU)?;
        let got = perplexity_search_of_counts(&distances, &of_counts, &[perplexity, 1.])?;
        for (i, got) in got.to_vec2::<f32>()?.iter().enumerate() {
            let counts = &counts[i * k..][..k];
            let places = places(counts);
            let row = distances.get(i)?.reshape((k, 1))?;
            let row = repeated(&row, &places)?.reshape((1, places.len()))?;
            let each = flat(&perplexity_search_reference(&row, &[perplexity, 1.])?)?;
            let mut want = vec![0.; k];
            places.iter().zip(each).for_each(|(&at, p)| want[at as usize] += p);
            let got: Vec<f64> = got.iter().map(|&p| p.into()).collect();
            assert_near(&format!("{n}×{k}, row {i}"), &got, &want, 1e-4);
        }
    }
    Ok(())
}

#[test]
fn neighbours_of_which_there_are_none_are_not_there() -> Result<()> {
    // The nearest, the farthest and one between.
    let distances = Tensor::new(&[[0f32, 1., 1.5, 2., 3., 4e18]], &CPU)?;
    let counts = Tensor::new(&[[0f32, 1., 0., 1., 1., 0.]], &CPU)?;
    let got = flat(&perplexity_search_of_counts(&distances, &counts, &[2.])?)?;
    let want = flat(&perplexity_search(&Tensor::new(&[[1f32, 2., 3.]], &CPU)?, &[2.])?)?;
    assert_near("those that are", &[got[1], got[3], got[4]], &want, 1e-5);
    assert_eq!([got[0], got[2], got[5]], [0.; 3]);
    let says = |counts: &[f32; 6], perplexity: f64, want: &str| -> Result<()> {
        let said = perplexity_search_of_counts(&distances, &Tensor::new(&[*counts], &CPU)?, &[perplexity]);
        let said = said.map_or_else(|e| e.to_string(), |_| String::new());
        assert!(said.contains(want), "{said}");
        Ok(())
    };
    says(&[0., 1., 0., 1., 1., 0.], 3.5, "a perplexity must be in 1..=3, the number of neighbours, got 3.5")?;
    says(&[0.; 6], 1., "in 1..=0")?;
    says(&[1., -1., 1., 1., 1., 1.], 2., "counts must be finite numbers of at least 0, got -1")?;
    says(&[1., f32::NAN, 1., 1., 1., 1.], 2., "got NaN")
}

#[test]
fn a_row_may_be_its_own_neighbour() -> Result<()> {
    let indices = Tensor::new(&[[0u32, 2], [2, 1], [0, 2]], &CPU)?;
    let p = Tensor::new(&[[0.25f32, 0.75], [0.5, 0.5], [1., 0.]], &CPU)?;
    let (got, want) = (symmetrize(&indices, &p)?, symmetrize_reference(&indices, &p)?);
    assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?);
    assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?);
    assert_near("values", &flat(&got.values)?, &flat(&want.values)?, 1e-6);
    assert_near("p_00", &[flat(&got.values)?[0]], &[0.25 / 3.], 1e-6);
    Ok(())
}

#[test]
fn points_with_weights_move_as_so_many_points() -> Result<()> {
    for (n, k, d, alpha) in [(2, 1, 2, 1f32), (30, 7, 2, 0.5), (300, 17, 3, 1.)] {
        let weights = weights(n, 9)?;
        let places = places(&weights);
        let (_, graph) = graph(n, k)?;
        let layout = (gaussian(n, d, 1)? * 2.)?;
        let all = repeated(&layout, &places)?;
        let (pushes, total) = repulsion_reference(&all, alpha.into())?;
        let mut state = LayoutState::new(&layout)?;
        state.velocity = (gaussian(n, d, 2)? * 0.1)?;
        state.rates = Tensor::new(&[50f32, 0.8, 12.], &CPU)?;
        state.weights = Some(tensor(&weights)?);
        // An edge of the whole set for each of the points at its ends, which share its value.
        let host = |t: &Tensor| t.to_vec1::<u32>();
        let (offsets, columns) = (host(&graph.offsets)?, host(&graph.columns)?);
        let values = graph.values.to_vec1::<f32>()?;
        let (mut starts, mut to, mut p) = (vec![0u32], vec![], vec![]);
        for &i in &places {
            for e in offsets[i as usize] as usize..offsets[i as usize + 1] as usize {
                let value = values[e] / weights[i as usize] / weights[columns[e] as usize];
                for (j, _) in (0u32..).zip(&places).filter(|&(_, &at)| at == columns[e]) {
                    to.push(j);
                    p.push(value);
                }
            }
            starts.push(to.len() as u32);
        }
        let whole = chandlery_ops::tsne::Affinities {
            offsets: Tensor::new(starts, &CPU)?,
            columns: Tensor::new(to, &CPU)?,
            values: Tensor::new(p, &CPU)?,
        };
        let mut of_all = LayoutState::new(&all)?;
        of_all.velocity = repeated(&state.velocity, &places)?;
        of_all.rates = state.rates.clone();
        let step = LayoutStep { degrees_of_freedom: alpha, largest_step: 0.7, ..LayoutStep::default() };
        let want = layout_step_reference(&of_all, &whole, &pushes, total, &step)?;
        let firsts: Vec<u32> =
            (0..n as u32).map(|i| places.iter().position(|&at| at == i).unwrap() as u32).collect();
        let forces = repeated(&pushes, &firsts)?.to_dtype(DType::F32)?;
        let plain = layout_step_reference(&state, &graph, &forces, total, &step)?;
        layout_step_(&state, &graph, &forces, &Tensor::new(&[total], &CPU)?, &step)?;
        for (name, got) in [("step", &state), ("reference", &plain)] {
            let what = |of: &str| format!("{name}, {of}, {n}×{d}");
            let places = flat(&repeated(&got.layout, &places)?)?;
            assert_near(&what("layout"), &places, &flat(&want.layout)?, 2e-5);
            let velocity = flat(&repeated(&got.velocity, &self::places(&weights))?)?;
            assert_near(&what("velocity"), &velocity, &flat(&want.velocity)?, 2e-5);
            assert_near(&what("figures"), &flat(&got.figures)?, &flat(&want.figures)?, 2e-5);
        }
    }
    Ok(())
}

#[test]
fn parts_of_points_with_weights_add_up_to_all() -> Result<()> {
    let n = 300;
    let (layout, weights) = ((gaussian(n, 2, 4)? * 3.)?, tensor(&weights(n, 6)?)?);
    for method in
        [RepulsionMethod::Exact, RepulsionMethod::Tree { theta: 0.5 }, RepulsionMethod::Grid { nodes: 128 }]
    {
        let (want, want_total) = forces(method, &layout, Some(&weights), 1.)?;
        let (all, mut sum) = (layout.zeros_like()?, 0.);
        for part in [0..128, 128..256, 256..n] {
            // A tree writes 0 for others, and has parts of its own order; other methods leave them.
            let room = layout.zeros_like()?;
            let total = Tensor::zeros(1, DType::F64, &CPU)?;
            let of_part = Repulsion::new(method, n, 2, 1., &CPU)?.of_part(part)?;
            of_part.repulsion_of_(&room, &total, &layout, Some(&weights))?;
            all.slice_set(&(&all + &room)?, 0, 0)?;
            sum += total.to_vec1::<f64>()?[0];
        }
        assert_near(&format!("{method:?}"), &flat(&all)?, &want, 1e-6);
        assert!((sum - want_total).abs() <= 1e-9 * want_total, "{method:?}: {sum}, {want_total}");
    }
    Ok(())
}
