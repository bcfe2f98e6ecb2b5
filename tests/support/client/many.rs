//! Many small programs, one after the other or at random, each checked by the numbers that it computes: what processes do that
//! share a cache.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::cl;
use crate::session::{Session, Value};

const USAGE: &str = "many takes --keys N, --first N, --hot N, --seed N, --times N, --seconds N, --write FILE, --expect FILE and --clock yes";

/// Of which programs, in which order, and until when.
#[derive(Default)]
struct Plan {
    first: u32,
    keys: u32,
    /// Every second program is one of so many, the first ones.
    hot: u32,
    /// At random; otherwise each once, in order.
    seed: Option<u32>,
    times: Option<u32>,
    seconds: Option<u32>,
    write: Option<String>,
    expect: Option<String>,
    clock: bool,
}

impl Plan {
    fn read(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            keys: 10,
            ..Plan::default()
        };
        for pair in arguments.chunks(2) {
            let value = pair.get(1).ok_or(USAGE)?;
            let number = || value.parse::<u32>().map_err(|_| USAGE);
            match pair[0].as_str() {
                "--keys" => plan.keys = number()?.max(1),
                "--first" => plan.first = number()?,
                "--hot" => plan.hot = number()?,
                "--seed" => plan.seed = Some(number()?),
                "--times" => plan.times = Some(number()?),
                "--seconds" => plan.seconds = Some(number()?),
                "--write" => plan.write = Some(value.clone()),
                "--expect" => plan.expect = Some(value.clone()),
                "--clock" => plan.clock = true,
                _ => return Err(USAGE.to_owned()),
            }
        }
        Ok(plan)
    }

    fn next(&self, number: u32, state: &mut u32) -> u32 {
        let Some(_) = self.seed else {
            return self.first + number % self.keys;
        };
        let mut below = |bound: u32| {
            *state ^= *state << 13;
            *state ^= *state >> 17;
            *state ^= *state << 5;
            *state % bound
        };
        let hot = self.hot > 0 && below(2) == 0;
        self.first + below(if hot { self.hot } else { self.keys })
    }
}

/// One program from its source to its result, and how long clBuildProgram took.
fn one(session: &Session, key: u32) -> Result<(Vec<u32>, Duration), i32> {
    let check = |code| if code == 0 { Ok(()) } else { Err(code) };
    let (program, code) = cl::program(
        session.context,
        "__kernel void f(__global uint *out) { out[get_global_id(0)] = KEY + (uint)get_global_id(0); }\n",
    );
    check(code)?;
    let options = format!("-DKEY={key}");
    let start = Instant::now();
    check(cl::build(program, Some(&options)))?;
    let took = start.elapsed();
    let (kernel, code) = cl::kernel(program, "f");
    check(code)?;
    let words = session.launch(session.queue, kernel, &[Value::Out(16)])?;
    check(cl::release_kernel(kernel))?;
    check(cl::release_program(program))?;
    Ok((words, took))
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let plan = Plan::read(arguments)?;
    let expected: Option<BTreeMap<u32, String>> = match &plan.expect {
        Some(file) => Some(read(file)?),
        None => None,
    };
    let mut found = BTreeMap::new();
    let mut durations = Vec::new();
    let mut state = plan.seed.unwrap_or(0).wrapping_mul(7919).max(1);
    let times = match (plan.times, plan.seconds) {
        (Some(times), _) => times,
        (None, Some(_)) => u32::MAX,
        (None, None) => plan.keys,
    };
    let (start, mut built) = (Instant::now(), 0);
    while built < times
        && (plan.seconds).is_none_or(|seconds| start.elapsed().as_secs() < u64::from(seconds))
    {
        let key = plan.next(built, &mut state);
        let (words, took) =
            one(session, key).map_err(|code| format!("program {key}: code {code}"))?;
        let words = format!("{words:?}");
        if let Some(expected) = &expected
            && expected.get(&key) != Some(&words)
        {
            return Err(format!("program {key} computes {words}"));
        }
        found.insert(key, words);
        durations.push(took.as_nanos());
        built += 1;
    }
    if let Some(file) = &plan.write {
        let mut text = String::new();
        for (key, words) in &found {
            let _ = writeln!(text, "{key} {words}");
        }
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    println!("built {built} programs, {} different", found.len());
    if plan.clock {
        let durations: Vec<String> = durations.iter().map(u128::to_string).collect();
        println!("build_ns {}", durations.join(" "));
    }
    Ok(())
}

/// What each program computes, as a run of the same driver wrote it.
fn read(file: &str) -> Result<BTreeMap<u32, String>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let line = |line: &str| {
        let (key, words) = line.split_once(' ')?;
        Some((key.parse().ok()?, words.to_owned()))
    };
    let lines: Option<BTreeMap<u32, String>> = text.lines().map(line).collect();
    lines.ok_or_else(|| format!("{file}: not what --write wrote"))
}
