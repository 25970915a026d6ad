#![allow(clippy::unwrap_used)]
use super::*;
use candle::Device::Cpu;

/// Whole numbers, so that sums of all types are exact: rank `r` has `r + 1, r + 2, …`.
fn numbers(rank: usize, n: usize, dtype: DType) -> Tensor {
    let numbers: Vec<u32> = (0..n).map(|i| (rank + 1 + i) as u32).collect();
    Tensor::new(numbers, &Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn read(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// The first line of an error; backtraces may stand below it.
fn said(result: Result<()>) -> String {
    result.unwrap_err().to_string().lines().next().unwrap_or_default().to_owned()
}

/// Compares each collective of a type with its formula.
pub(super) fn assert_collectives(group: &Group, dtype: DType) {
    const N: usize = 5;
    let (rank, world) = (group.rank(), group.world());
    let sum = |i: usize| (0..world).map(|rank| (rank + 1 + i) as f64).sum::<f64>();
    let x = numbers(rank, N, dtype);
    group.all_reduce_(&x).unwrap();
    assert_eq!(read(&x), (0..N).map(sum).collect::<Vec<_>>(), "all_reduce_ {dtype:?} of {world}");

    let all = numbers(rank, world * N, dtype);
    let part = Tensor::zeros(N, dtype, &Cpu).unwrap();
    group.reduce_scatter_(&part, &all).unwrap();
    let want: Vec<f64> = (rank * N..(rank + 1) * N).map(sum).collect();
    assert_eq!(read(&part), want, "reduce_scatter_ {dtype:?} of {world}");

    group.all_gather_(&all, &numbers(rank, N, dtype)).unwrap();
    let want: Vec<f64> = (0..world).flat_map(|rank| read(&numbers(rank, N, dtype))).collect();
    assert_eq!(read(&all), want, "all_gather_ {dtype:?} of {world}");

    let x = numbers(rank, N, dtype);
    group.broadcast_(&x, world - 1).unwrap();
    assert_eq!(read(&x), read(&numbers(world - 1, N, dtype)), "broadcast_ {dtype:?} of {world}");
}

#[test]
fn every_collective_of_every_type_is_what_its_formula_says() {
    for (world, dtype) in [1, 2, 3, 4].into_iter().flat_map(|world| TYPES.map(|dtype| (world, dtype))) {
        Group::on_threads(Group::threads(world), |group| assert_collectives(group, dtype));
    }
}

#[test]
fn many_calls_in_a_row_do_not_mix_where_ranks_are_not_equally_fast() {
    let sums = Group::on_threads(Group::threads(3), |group| {
        let mut sums = vec![];
        for call in 0..200u32 {
            if call as usize % 3 == group.rank() {
                std::thread::yield_now();
            }
            let x = Tensor::new(&[call, group.rank() as u32], &Cpu).unwrap();
            group.all_reduce_(&x).unwrap();
            sums.push(x.to_vec1::<u32>().unwrap());
        }
        sums
    });
    let want: Vec<Vec<u32>> = (0..200).map(|call| vec![3 * call, 3]).collect();
    assert!(sums.iter().all(|of| *of == want));
}

#[test]
fn a_view_takes_part_with_its_own_entries() {
    Group::on_threads(Group::threads(2), |group| {
        let whole = Tensor::zeros((3, 4), DType::F32, &Cpu).unwrap();
        let row = Tensor::ones((1, 4), DType::F32, &Cpu).unwrap();
        whole.slice_set(&row, 0, 1).unwrap();
        group.all_reduce_(&whole.get(1).unwrap()).unwrap();
        assert_eq!(whole.sum(1).unwrap().to_vec1::<f32>().unwrap(), [0., 8., 0.]);
        let refused = group.all_reduce_(&whole.t().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("contiguous"), "{refused}");
    });
}

#[test]
fn parts_cover_all_items_in_order_and_differ_by_one_at_most() {
    for (n, world) in [(0, 3), (1, 3), (7, 3), (9, 3), (192, 8), (5, 1)] {
        let parts: Vec<_> = Group::threads(world).iter().map(|group| group.part(n)).collect();
        let items: Vec<usize> = parts.iter().cloned().flatten().collect();
        assert_eq!(items, (0..n).collect::<Vec<_>>());
        let sizes = parts.iter().map(ExactSizeIterator::len);
        assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{parts:?}");
    }
}

#[test]
fn ranks_that_differ_or_are_gone_end_the_wait_of_the_others() {
    let words = Group::on_threads(Group::threads(3), |group| {
        let n = if group.rank() == 1 { 3 } else { 2 };
        said(group.all_reduce_(&numbers(0, n, DType::F32)))
    });
    for words in words {
        assert!(words.starts_with("all_reduce_: all ranks must make the same call, got"), "{words}");
    }
    let words = Group::on_threads(Group::threads(3), |group| match group.rank() {
        2 => String::new(),
        _ => said(group.broadcast_(&numbers(0, 2, DType::F32), 0)),
    });
    assert_eq!(words[..2], ["broadcast_: rank 2 of 3 is gone"; 2]);
}

#[test]
fn arguments_without_sense_are_refused() {
    let group = Group::single();
    let x = numbers(0, 2, DType::F32);
    assert_eq!(said(group.broadcast_(&x, 1)), "broadcast_: root must be below 1, the number of ranks, got 1");
    assert_eq!(
        said(group.all_gather_(&numbers(0, 3, DType::F32), &x)),
        "all_gather_: all must have 2 entries, 2 for each of 1 ranks, got 3"
    );
    assert!(group.all_reduce_(&x.to_dtype(DType::U8).unwrap()).is_err());
}
