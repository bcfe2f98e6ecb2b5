//! Programs of files, made and built again and again: calls of a process that has long begun.

use std::thread;
use std::time::Duration;

use crate::cl;
use crate::session::Session;

const USAGE: &str =
    "keys takes --source FILE, --options STRING, and --times N and --threads N or --apart MS";

fn one(session: &Session, source: &str, options: &str) -> Result<(), i32> {
    let (program, code) = cl::program(session.context, source);
    let code = if code == 0 {
        cl::build(program, Some(options))
    } else {
        code
    };
    if code != 0 {
        return Err(code);
    }
    cl::release_program(program);
    Ok(())
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let (mut sources, mut options, mut times, mut threads) = (Vec::new(), String::new(), 100, 1);
    let mut apart = None;
    for pair in arguments.chunks(2) {
        let value = pair.get(1).ok_or(USAGE)?;
        match pair[0].as_str() {
            "--source" => {
                let source = std::fs::read_to_string(value);
                sources.push(source.map_err(|error| format!("{value}: {error}"))?);
            }
            "--options" => options.clone_from(value),
            "--times" => times = value.parse().map_err(|_| USAGE)?,
            "--threads" => threads = value.parse().map_err(|_| USAGE)?,
            "--apart" => apart = Some(value.parse().map_err(|_| USAGE)?),
            _ => return Err(USAGE.to_owned()),
        }
    }
    let work = || {
        for source in sources.iter().cycle().take(sources.len() * times) {
            one(session, source, &options)?;
        }
        Ok(())
    };
    let one_source = |number: u32, apart: u64| {
        thread::sleep(Duration::from_millis(apart) * number);
        one(session, &sources[number as usize], &options)
    };
    let ended: Vec<Result<(), i32>> = thread::scope(|scope| {
        let running: Vec<_> = match apart {
            Some(apart) => (0..sources.len() as u32)
                .map(|number| scope.spawn(move || one_source(number, apart)))
                .collect(),
            None => (0..threads).map(|_| scope.spawn(work)).collect(),
        };
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.expect("no panic")).collect()
    });
    let ended: Result<(), i32> = ended.into_iter().collect();
    ended.map_err(|code| format!("clBuildProgram: {code}"))?;
    println!("built {times} times");
    Ok(())
}
