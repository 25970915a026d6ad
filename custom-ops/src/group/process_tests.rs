//! Processes are threads here: nothing of a group is the property of a process but its place.
#![allow(clippy::unwrap_used)]
use super::environment::Place;
use super::frames::{Frame, Kind};
use super::tests::assert_collectives;
use super::{Group, OnLoss, Processes, TYPES, Wish};
use candle::{Device, Result, Tensor};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn place(rank: usize, world: usize, port: u16) -> Place {
    let (host, run) = ("127.0.0.1".to_owned(), "of a test".to_owned());
    Place { rank, local_rank: rank, world, host, ports: vec![port], run }
}

fn quietly() -> OnLoss {
    Box::new(|_| ())
}

/// A listener of rank 0, and its port.
fn listener(world: usize) -> (TcpListener, u16) {
    let listener = place(0, world, 0).listen().unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// What each rank makes of its connection, in the order of ranks.
fn each<T: Send>(world: usize, of_rank: impl Fn(Processes) -> T + Sync) -> Vec<T> {
    let (listener, port) = listener(world);
    let (listener, of_rank) = (&listener, &of_rank);
    thread::scope(|scope| {
        let rank = |rank| {
            move || {
                let place = place(rank, world, port);
                of_rank(match rank {
                    0 => Processes::host(listener, &place, LIMIT, quietly(), || Ok(())).unwrap(),
                    _ => Processes::meet(&place, LIMIT, quietly()).unwrap(),
                })
            }
        };
        let ranks: Vec<_> = (0..world).map(|r| scope.spawn(rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn said<T>(result: Result<T>) -> String {
    let text = result.err().unwrap().to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn collectives_over_tcp_are_those_of_threads() {
    for world in [1, 2, 3, 4] {
        each(world, |processes| {
            let group = Group::of_processes(&Arc::new(processes), &Device::Cpu).unwrap();
            TYPES.iter().for_each(|&dtype| assert_collectives(&group, dtype));
        });
    }
}

#[test]
fn ranks_that_call_something_else_are_named() {
    let words = each(2, |processes| {
        let group = Group::of_processes(&Arc::new(processes), &Device::Cpu).unwrap();
        let x = Tensor::zeros(2 + group.rank(), candle::DType::F32, &Device::Cpu).unwrap();
        said(group.all_reduce_(&x))
    });
    let want = "all_reduce_: all ranks must make the same call, got all_reduce_ of f32 of 2 on rank 0 and all_reduce_ of f32 of 3 on rank 1";
    assert_eq!(words[0], want);
}

#[test]
fn who_does_not_come_is_named_and_the_others_are_told() {
    let (listener, port) = listener(4);
    let limit = Duration::from_millis(500);
    thread::scope(|scope| {
        let second = scope.spawn(|| said(Processes::meet(&place(2, 4, port), LIMIT, quietly())));
        let first = Processes::host(&listener, &place(0, 4, port), limit, quietly(), || Ok(()));
        let want = format!("ranks 1 and 3 of 4 did not come to 127.0.0.1:{port} within 0.5 s");
        assert_eq!([said(first), second.join().unwrap()], [want.clone(), want]);
    });
    drop(listener);
    let said = said(Processes::meet(&place(1, 2, port), limit, quietly()));
    let want = format!("rank 0 of 2 did not answer rank 1 at 127.0.0.1:{port} within 0.5 s: ");
    assert!(said.starts_with(&want), "{said}");
}

#[test]
fn strangers_and_starts_of_others_are_passed_over() {
    let (listener, port) = listener(2);
    thread::scope(|scope| {
        let first =
            scope.spawn(|| Processes::host(&listener, &place(0, 2, port), LIMIT, quietly(), || Ok(())));
        // One that says nothing, one that asks for a page, one of another start.
        let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut page = TcpStream::connect(("127.0.0.1", port)).unwrap();
        page.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let _ = page.read(&mut [0; 64]);
        let other = Place { run: "another".to_owned(), ..place(1, 2, port) };
        let words = said(Processes::meet(&other, LIMIT, quietly()));
        let want = format!("127.0.0.1:{port} is the meeting of another start; choose another port");
        assert_eq!(words, want);
        let second = Processes::meet(&place(1, 2, port), LIMIT, quietly()).unwrap();
        assert_eq!((second.rank(), second.world(), first.join().unwrap().unwrap().rank()), (1, 2, 0));
    });
}

#[test]
fn a_rank_of_another_start_of_the_same_name_is_refused_by_name() {
    for (coming, want) in [
        (place(1, 3, 0), "rank 1 on HOST is one of 3 processes, and rank 0 of 2"),
        (place(0, 2, 0), "rank 0 on HOST came twice"),
    ] {
        let (listener, port) = listener(2);
        let words = thread::scope(|scope| {
            let first =
                scope.spawn(|| Processes::host(&listener, &place(0, 2, port), LIMIT, quietly(), || Ok(())));
            // As rank 1 says it; one that is rank 0 would listen.
            let greeting =
                format!("{}\n{}\nof a test\n{}\nHOST", env!("CARGO_PKG_VERSION"), coming.world, coming.rank);
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            Frame::new(Kind::Hello, 0, greeting.into_bytes()).write(&stream).unwrap();
            assert_eq!(Frame::read(&stream, 100).unwrap().kind, Kind::Heard);
            let reply = Frame::read(&stream, 1000).unwrap();
            assert_eq!(reply.kind, Kind::Refused);
            assert_eq!(String::from_utf8(reply.bytes).unwrap(), want);
            said(first.join().unwrap())
        });
        assert_eq!(words, want);
    }
}

#[test]
fn settings_that_differ_are_named_with_both_values() {
    let words = each(3, |processes| {
        processes.agree("seed: 1\nrows: 5").unwrap();
        said(processes.agree(&format!("seed: 1\nrows: {}", 5 + processes.rank() / 2)))
    });
    for words in words {
        assert!(
            words
                .starts_with("all ranks must be asked for the same; rank 0 has rows: 5, and rank 2 of 3 on ")
        );
        assert!(words.ends_with(" rows: 6"), "{words}");
    }
}

/// What each rank of 3 hears when rank 1 ends in this way, and what its callback was told.
fn heard(end: impl Fn(Processes) + Sync) -> (Vec<String>, Vec<String>) {
    let (listener, port) = listener(3);
    let (told, tell) = (Mutex::new(Vec::new()), channel::<String>());
    let (have_met, others) = channel();
    let others = &Mutex::new(others);
    let (listener, end, words) = (&listener, &end, Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for rank in 0..3 {
            let (tell, words, have_met) = (tell.0.clone(), &words, have_met.clone());
            scope.spawn(move || {
                let place = place(rank, 3, port);
                let on_loss: OnLoss = Box::new(move |text| drop(tell.send(text.to_owned())));
                let processes = match rank {
                    0 => Processes::host(listener, &place, LIMIT, on_loss, || Ok(())).unwrap(),
                    _ => Processes::meet(&place, LIMIT, on_loss).unwrap(),
                };
                processes.wait().unwrap();
                if rank == 1 {
                    // Rank 0 answers one rank after another: rank 2 may have no answer yet.
                    let others = others.lock().unwrap();
                    (0..2).for_each(|_| others.recv_timeout(LIMIT).unwrap());
                    return end(processes);
                }
                have_met.send(()).unwrap();
                let heard = said(processes.wait());
                words.lock().unwrap().push(heard);
            });
        }
    });
    drop(tell.0);
    // They are told by threads of their own, maybe after the wait has ended.
    told.lock().unwrap().extend(std::iter::from_fn(|| tell.1.recv_timeout(LIMIT).ok()));
    (words.into_inner().unwrap(), told.into_inner().unwrap())
}

#[test]
fn a_rank_that_fails_or_leaves_ends_the_waits_of_all() {
    let (words, told) = heard(|processes| processes.fail("the disk is full"));
    assert_eq!((words.len(), told.len()), (2, 2), "{told:?}");
    for text in words.iter().chain(&told) {
        assert!(text.starts_with("rank 1 of 3 on ") && text.ends_with(" failed: the disk is full"), "{text}");
    }
    // One that leaves is no loss, but nobody may wait for it.
    let (words, _) = heard(drop);
    assert!(words.iter().any(|text| text == "rank 1 of 3 has left"), "{words:?}");
}

#[test]
fn a_rank_that_is_cut_off_or_silent_ends_the_waits_of_all() {
    // A rank that greets, and then says nothing more or ends its connection.
    for (is_silent, want) in [(false, "is gone: its connection ended"), (true, "has said nothing for 10 s")] {
        let (listener, port) = listener(2);
        thread::scope(|scope| {
            let first =
                scope.spawn(|| Processes::host(&listener, &place(0, 2, port), LIMIT, quietly(), || Ok(())));
            let greeting = format!("{}\n2\nof a test\n1\nHOST", env!("CARGO_PKG_VERSION"));
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            Frame::new(Kind::Hello, 0, greeting.into_bytes()).write(&stream).unwrap();
            let first = first.join().unwrap().unwrap();
            let since = Instant::now();
            let keep = is_silent.then_some(stream);
            assert_eq!(said(first.wait()), format!("rank 1 of 2 on HOST {want}"));
            assert!(since.elapsed() < Duration::from_secs(15));
            drop(keep);
        });
    }
}

#[test]
fn what_a_rank_asks_for_all_do_at_the_same_turn() {
    // What ranks ask for late, when others have agreed or are done, comes by chance.
    (0..10).for_each(|_| ranks_agree_on_turns());
}

fn ranks_agree_on_turns() {
    const TURNS: usize = 300;
    const APART: usize = 20;
    let asked = AtomicUsize::new(0);
    let reached: [AtomicUsize; 3] = Default::default();
    let of_rank = |processes: Processes| {
        let rank = processes.rank();
        let mut done = Vec::new();
        for turn in 0..TURNS {
            // Ranks whose steps need each other now and then, that are not equally fast, and ask for
            // different things at different turns.
            reached[rank].store(turn, Ordering::SeqCst);
            while reached.iter().any(|of| of.load(Ordering::SeqCst) + APART < turn) {
                thread::sleep(Duration::from_micros(50));
            }
            if turn % 7 == rank {
                thread::sleep(Duration::from_micros(300));
            }
            if turn == 40 + 30 * rank {
                processes.ask(Wish { save: true, stop: false });
                asked.fetch_add(1, Ordering::SeqCst);
            }
            if turn == 200 && rank != 1 {
                processes.ask(Wish { save: false, stop: true });
            }
            let wish = processes.turn().unwrap();
            if !wish.is_none() {
                done.push((turn, wish));
            }
            if wish.stop {
                break;
            }
        }
        reached[rank].store(TURNS, Ordering::SeqCst);
        // Nobody leaves before all have stopped.
        processes.wait().unwrap();
        done
    };
    let all = each(3, of_rank);
    assert!(all.iter().all(|done| *done == all[0]), "{all:?}");
    let (stopped, saved) = all[0].iter().copied().partition::<Vec<(usize, Wish)>, _>(|(_, wish)| wish.stop);
    assert!((1..=3).contains(&saved.len()) && saved[0].0 >= 40, "{saved:?}");
    assert!(stopped.len() == 1 && stopped[0].0 >= 200, "{stopped:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}
