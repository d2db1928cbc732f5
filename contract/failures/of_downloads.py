"""Signatures of downloads that cannot be made: urllib, requests, httpx, the hubs, and the packages that use them."""

from __future__ import annotations

from contract.failures.signature import configuration, infrastructure

_ELSEWHERE = (
    r"(?!.{0,600}(?:host='|://|host )(?:127\.|10\.|100\.|192\.168\.|172\.(?:1[6-9]|2[0-9]|3[01])\.|\[?::1"
    r"|[\w-]{1,63}['\"/:]|[\w.-]{1,200}\.(?:local|lan|internal|home)\b))"
)
"""Host outside the local network, by its address or its name: another one is no download."""
_NO_FULL_DISK = r"(?!.{0,300}(?:[Nn]o space left|quota exceeded))"

_NO_WAY_OUT = (
    r"Name or service not known|[Tt]emporary failure in name resolution|No address associated with hostname"
    r"|nodename nor servname|Could not resolve host|unable to resolve host|dns error|NameResolutionError"
    r"|No route to host|Network is unreachable|\[Errno -[235]\]|\bcurl: \(6\)"
)
"""A node without name server or way to the internet: its next try finds none either."""
_NOT_BROUGHT = (
    r"[Cc]ouldn't connect to '?https?://huggingface\.co|LocalEntryNotFoundError|OfflineModeIsEnabled"
    r"|in the (?:local cache|cached files)\b|Please use the NLTK Downloader to obtain the resource"
    r"|If you were trying to load it from 'https://huggingface"
)
"""Libraries that have tried for themselves, and have nothing in their cache: a restart begins with the same cache."""

DOWNLOADS = (
    configuration(
        "network.hub_access",
        r"gated repo|Cannot access gated|Access to (?:model|dataset) .{1,200} is restricted",
        r"(?:GatedRepo|RepositoryNotFound|RevisionNotFound|DatasetNotFound|LocalTokenNotFound)Error",
        r"(?<!Local)EntryNotFoundError",
        r"doesn't exist on the Hub or cannot be accessed",
        r"is not a local folder and is not a valid model identifier",
        r"\b(?:401|403|404|410|451) Client Error" + _ELSEWHERE,
        r"Client error '(?:401|403|404|410|451) ",
        r"HTTP Error (?:401|404|410): ",
    ),
    infrastructure(
        "network.download",
        r"^(?!\[nltk_data\]).{0,1500}<urlopen error (?!unknown url type)" + _ELSEWHERE,
        r"HTTP Error (?:403|408|429|5[0-9]{2}): ",
        r"\b(?:(?:408|429) Client|5[0-9]{2} Server) Error" + _ELSEWHERE,
        r"(?:Client|Server) error '(?:408|429|5[0-9]{2}) ",
        r"^(?!.{0,3000}(?:thrown while requesting|connection broken by)).{0,1500}HTTPS?ConnectionPool"
        + _ELSEWHERE
        + r"\(host=",
        r"(?:requests|urllib3)\.exceptions\.(?:Connection|MaxRetry|SSL|Proxy"
        r"|Protocol|ChunkedEncoding|Retry|IncompleteRead"
        r"|NewConnection|NameResolution|\w{0,20}Timeout)(?:Error)?: " + _ELSEWHERE,
        r"(?:httpx2?|httpcore2?)\.(?:\w{0,20}(?:Timeout|Connect|Network|Read|Write|Proxy|Protocol)(?:Error)?): "
        + _ELSEWHERE,
        r"aiohttp\.\w{0,40}\.?(?:Client|Server)\w{1,40}Error: " + _ELSEWHERE,
        r"http\.client\.(?:RemoteDisconnected|IncompleteRead)|urllib\.error\.ContentTooShortError",
        r"\[SSL: [A-Z_0-9]{3,80}\]|unable to get local issuer certificate|SSL certificate problem",
        r"(?:[Cc]ouldn't|[Cc]annot|[Cc]an't|could not|Failed to) (?:connect to|reach|resolve) .{0,40}huggingface\.co",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        r"Can't load .{1,80} (?:for|of) '(?![./~]).{1,200}'\. If you were trying to load it from 'https://huggingface",
        r"Couldn't reach .{1,300}(?:on the Hub|https?://|\(\w{0,40}Error)|Couldn't reach https?://",
        r"Couldn't find .{0,400}(?:on|from) the (?:Hugging Face )?Hub either",
        r"doesn't exist on the (?:\S{1,20} ){0,2}Hub either",
        r"(?:Value|Connection)Error: Couldn't find cache for ",
        r"(?:CAS (?:service|[Cc]lient) [Ee]rror|File reconstruction error|[Rr]eqwest(?:Middleware)? ?[Ee]rror)"
        + _NO_FULL_DISK,
        r"error sending request for url|An error occurred while downloading using `hf_transfer`",
        r"FileNotFoundError: (?!\[Errno).{0,80}'(?:https?|hf|s3|gs)://",
        r"CalledProcessError: Command .{0,8}(?:curl|wget|gdown|aria2c)\b",
        r"CalledProcessError: Command .{0,8}git\W{1,4}clone",
        r"looks like there is no internet connection",
        r"Consistency check failed: file should be of size",
        r"(?:NonMatchingChecksum|ExpectedMoreDownloadedFiles|ChecksumVerification|DownloadChecksum)\w{0,10}Error",
        r"Error downloading \S{1,300}:?$|^(?:RuntimeError: )?Error downloading ",
        r"invalid hash value \(expected \"|File not found or corrupted\.$",
        r"URL fetch failure on ",
        r"[Ss]omething went wrong when downloading",
        r"[Ff]ailed to retrieve file url|FileURLRetrievalError|(?<!\w)DownloadError: ",
        r"Could not connect to the endpoint URL: ",
        r"Please use the NLTK Downloader to obtain the resource",
        r"curl: \((?:5|6|7|22|28|35|56|60)\)|wget: (?:unable|can't|bad)|fatal: unable to access '",
        r"(?:Error|Exception): (?:[Uu]nable|[Ff]ailed|[Cc]ould not"
        r"|[Cc]annot) (?:to )?(?:download|fetch|retrieve) .{0,300}https?://",
        final=f"{_NO_WAY_OUT}|{_NOT_BROUGHT}",
    ),
)
