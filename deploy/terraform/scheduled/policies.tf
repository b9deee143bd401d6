data "aws_iam_policy_document" "worker" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
      "${aws_dynamodb_table.jobs.arn}/index/*",
    ]
  }
}

resource "aws_iam_policy" "worker" {
  name   = "${var.table_name}-worker"
  policy = data.aws_iam_policy_document.worker.json
  tags   = var.tags
}

data "aws_iam_policy_document" "enqueuer" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
    ]
  }
}

resource "aws_iam_policy" "enqueuer" {
  name   = "${var.table_name}-enqueuer"
  policy = data.aws_iam_policy_document.enqueuer.json
  tags   = var.tags
}

data "aws_iam_policy_document" "operator" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:Scan",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
      "${aws_dynamodb_table.jobs.arn}/index/*",
    ]
  }
}

resource "aws_iam_policy" "operator" {
  name   = "${var.table_name}-operator"
  policy = data.aws_iam_policy_document.operator.json
  tags   = var.tags
}
