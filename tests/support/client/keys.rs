//! One program, made and built again and again: a call of a process that has long begun.

use crate::cl;
use crate::session::Session;

const USAGE: &str = "keys takes --source FILE, --options STRING and --times N";

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let (mut source, mut options, mut times) = (String::new(), String::new(), 100);
    for pair in arguments.chunks(2) {
        let value = pair.get(1).ok_or(USAGE)?;
        match pair[0].as_str() {
            "--source" => {
                source =
                    std::fs::read_to_string(value).map_err(|error| format!("{value}: {error}"))?;
            }
            "--options" => options.clone_from(value),
            "--times" => times = value.parse().map_err(|_| USAGE)?,
            _ => return Err(USAGE.to_owned()),
        }
    }
    for _ in 0..times {
        let (program, code) = cl::program(session.context, &source);
        let code = if code == 0 {
            cl::build(program, Some(&options))
        } else {
            code
        };
        if code != 0 {
            return Err(format!("clBuildProgram: {code}"));
        }
        cl::release_program(program);
    }
    println!("built {times} times");
    Ok(())
}
