//! S3 and WebDAV, through OpenDAL.

use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use opendal::{ErrorKind, HttpTransporter, OperationContext, Operator, services};
use opendal_http_transport_reqwest::ReqwestTransport;

use super::{
    CONCURRENT, CONNECT_TIMEOUT, EVICTS_NOTHING, Engine, EngineError, EngineSettings, ListedObject,
    Listing, OPERATION_TIMEOUT, Outcome, Scheme,
};

pub struct Files {
    operator: Operator,
    scheme: Scheme,
}

impl Files {
    /// Nothing is connected yet.
    pub fn new(settings: &EngineSettings) -> Result<Files, String> {
        let address = &settings.address;
        let cannot = |error: opendal::Error| format!("`{}` cannot be used: {error}", address.url);
        let operator = match address.scheme {
            Scheme::WebDav { .. } => {
                let mut url = address.url.clone();
                let path = url.path().to_owned();
                url.set_path("");
                url.set_query(None);
                let mut service = services::Webdav::default()
                    .endpoint(url.as_str())
                    .root(&path);
                if let Some(credential) = &settings.credential {
                    service = service
                        .username(&credential.user)
                        .password(&credential.password);
                }
                Operator::new(service).map_err(cannot)?
            }
            Scheme::S3 => s3(settings).map_err(cannot)?,
            Scheme::Redis { .. } | Scheme::Directory => {
                return Err(format!("`{}` has another engine", address.url));
            }
        };
        let transport = HttpTransporter::new(ReqwestTransport::new(client(settings)?));
        let context = OperationContext::default().with_http_transport(transport);
        Ok(Files {
            operator: operator.with_context(context),
            scheme: address.scheme,
        })
    }

    async fn read_one(&self, name: &str, limit: u64) -> Outcome<Option<Vec<u8>>> {
        let reader = self.operator.reader(name).await.map_err(judge)?;
        // OpenDAL takes an object that ends within the range that was asked for as an error, so all is asked for, and a server that
        // sends more than the limit is not listened to.
        let stream = match reader.into_bytes_stream(..).await {
            Ok(stream) => stream,
            Err(error) => return absent(error),
        };
        let mut stream = std::pin::pin!(stream);
        let mut bytes = Vec::new();
        loop {
            match stream.try_next().await {
                Ok(None) => return Ok(Some(bytes)),
                Ok(Some(part)) => {
                    let room = (limit + 1) as usize - bytes.len();
                    bytes.extend(&part[..part.len().min(room)]);
                    if bytes.len() > limit as usize {
                        return Ok(Some(bytes));
                    }
                }
                Err(error) => {
                    let error = opendal::Error::new(
                        error
                            .get_ref()
                            .and_then(|inner| inner.downcast_ref::<opendal::Error>())
                            .map_or(ErrorKind::Unexpected, opendal::Error::kind),
                        error.to_string(),
                    );
                    return absent(error);
                }
            }
        }
    }
}

fn absent(error: opendal::Error) -> Outcome<Option<Vec<u8>>> {
    match error.kind() {
        // An object without bytes has no range.
        ErrorKind::NotFound | ErrorKind::RangeNotSatisfied => Ok(None),
        _ => Err(judge(error)),
    }
}

fn s3(settings: &EngineSettings) -> opendal::Result<Operator> {
    let address = &settings.address;
    let bucket = address.url.host_str().unwrap_or_default();
    let region = address
        .parameter("region")
        .unwrap_or_else(|| "us-east-1".to_owned());
    let mut service = services::S3::default()
        .bucket(bucket)
        .endpoint(&address.endpoint())
        .region(&region);
    if !settings.uses_aws_credentials {
        service = service.disable_config_load().disable_ec2_metadata();
    }
    service = match &settings.credential {
        Some(credential) => service
            .access_key_id(&credential.user)
            .secret_access_key(&credential.password),
        None if settings.uses_aws_credentials => service,
        None => service.skip_signature(),
    };
    Operator::new(service)
}

/// A client that follows no redirects: credentials go to their origin and nowhere else.
fn client(settings: &EngineSettings) -> Result<reqwest::Client, String> {
    let mut client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(OPERATION_TIMEOUT)
        .no_proxy();
    if let Some(authorities) = &settings.authorities {
        let certificates = reqwest::Certificate::from_pem_bundle(authorities);
        let certificates = certificates
            .map_err(|error| format!("the file of `remote_ca` cannot be read: {error}"))?;
        client = client.tls_certs_only(certificates);
    }
    client
        .build()
        .map_err(|error| format!("there is no HTTP client: {error}"))
}

/// What S3 calls a signature whose time is too far from its own. The status is the same as for a wrong password.
const CLOCK_DIFFERS: &str = "RequestTimeTooSkewed";

/// What an error of OpenDAL means.
fn judge(error: opendal::Error) -> EngineError {
    let why = error.to_string();
    let first_line = why.lines().next().unwrap_or_default().to_owned();
    match error.kind() {
        _ if why.contains(CLOCK_DIFFERS) => EngineError::ClockDiffers(first_line),
        ErrorKind::PermissionDenied => EngineError::Denied(first_line),
        ErrorKind::RateLimited => EngineError::Full(first_line),
        // Not the digits alone: a name or a port may have them.
        _ if why.contains("status: 507") => EngineError::Full(first_line),
        // No answer came: reqwest says so whatever the reason is, and OpenDAL keeps its text only.
        _ if why.contains("error sending request") => EngineError::Unreachable(first_line),
        _ => EngineError::Failed(first_line),
    }
}

#[async_trait]
impl Engine for Files {
    async fn check(&self) -> Outcome<()> {
        match self.read_one("o1-check", 1).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn read(&self, names: &[String], limit: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
        let reads = names.iter().map(|name| self.read_one(name, limit));
        let reads: Vec<_> = reads.collect();
        stream::iter(reads).buffered(CONCURRENT).try_collect().await
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> Outcome<()> {
        self.operator.write(name, bytes).await.map_err(judge)?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Outcome<bool> {
        // Servers do not tell whether there was one.
        self.operator.delete(name).await.map_err(judge)?;
        Ok(true)
    }

    async fn list(&self, prefix: &str) -> Outcome<Listing> {
        let entries = self.operator.list_with(prefix).recursive(true).await;
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(judge(error)),
        };
        let files = entries
            .into_iter()
            .filter(|entry| entry.metadata().is_file());
        let objects = files.map(|entry| ListedObject {
            name: entry.path().to_owned(),
            size: entry.metadata().content_length(),
            modified: entry.metadata().last_modified().and_then(|time| {
                let time = std::time::SystemTime::from(time);
                Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
            }),
        });
        Ok(Listing {
            objects: objects.collect(),
            hidden: 0,
        })
    }

    async fn eviction(&self) -> Option<Result<String, String>> {
        match self.scheme {
            Scheme::S3 => None,
            _ => Some(Err(EVICTS_NOTHING.to_owned())),
        }
    }
}
